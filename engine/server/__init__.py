"""The server: its life cycle, and the parts that all of its faces share."""
