"""Observability for operators: metrics, traces and the request log."""
