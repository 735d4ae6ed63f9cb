"""Sampling, log-probabilities, acceptance of drafts, and constraint masks."""
