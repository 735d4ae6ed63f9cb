"""The texts of scalar types as patterns: each a regular subset of the texts that pydantic and msgspec accept."""
