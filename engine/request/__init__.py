"""Requests: from a client's prompt and parameters to sequences that can be scheduled."""
