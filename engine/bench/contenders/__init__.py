"""Engines under measurement: this one and others, with checkpoints or with random weights in a public shape."""
