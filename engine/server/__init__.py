"""The server: its life cycle, and what all of its faces share."""
