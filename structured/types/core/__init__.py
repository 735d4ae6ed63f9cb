"""Readers of pydantic's core schema, the description from which its validators are built.

Each reader returns a JSON Schema of texts that the validator accepts, in lax and in strict mode. See
https://docs.pydantic.dev/latest/api/pydantic_core_schema/.
"""
