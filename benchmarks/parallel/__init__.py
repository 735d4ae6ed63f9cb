"""Measurements of what several ranks of a model exchange, besides the sums."""
