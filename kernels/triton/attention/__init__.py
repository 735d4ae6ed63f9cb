"""Paged attention: decodes, verifies and prompt chunks, with rotation and cache writes."""
