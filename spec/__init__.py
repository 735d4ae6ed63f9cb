"""Speculation: drafters and exact verification."""
