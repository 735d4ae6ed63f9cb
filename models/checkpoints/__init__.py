"""Checkpoints: where a model's files are, and its weights by name."""
