"""Extraction: values of a type from texts, each with its own result. The faces send the requests."""
