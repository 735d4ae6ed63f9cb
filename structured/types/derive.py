"""``typed_schema``: the strict JSON Schema of a type."""

from __future__ import annotations

import json
from typing import TypeVar

from pydantic import TypeAdapter

from draftline.structured.types.typed_schema import TypedSchema

T = TypeVar("T")


def typed_schema(kind: type[T]) -> TypedSchema[T]:
    """Derive the schema of a type.

    Args:
        kind: a pydantic model, or any type that ``pydantic.TypeAdapter`` accepts.
    """
    adapter = TypeAdapter(kind)
    return TypedSchema(kind, json.dumps(_closed(adapter.json_schema())), (), adapter.validate_json)


def _closed(schema: object) -> object:
    """Close a model's schema: objects with fields get no other members, unless the schema allows them."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {
        name: {key: _closed(value) for key, value in part.items()} if name in ("properties", "$defs") else _closed(part)
        for name, part in schema.items()
        if name not in ("default", "examples", "const", "enum")
    }
    closed |= {name: schema[name] for name in ("const", "enum") if name in schema}
    if schema.get("type") == "object" and "properties" in schema:
        closed.setdefault("additionalProperties", False)
    return closed
