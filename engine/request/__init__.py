"""Requests: from what a client wrote to sequences that can be scheduled."""
