"""Batches of requests from files: their lines, their answers, and a run that can be resumed."""
