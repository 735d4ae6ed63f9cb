"""``typed_schema``: the strict JSON Schema of a type."""

from __future__ import annotations

import json
from typing import Annotated, Any, get_args, get_origin

from pydantic import TypeAdapter

from draftline.structured.errors import UnsupportedConstraintError
from draftline.structured.types.core.place import Place
from draftline.structured.types.core.reader import CoreReader
from draftline.structured.types.typed_schema import TypedSchema


def typed_schema(kind: Any) -> TypedSchema[Any]:
    """Derive the schema of a type.

    Args:
        kind: a pydantic model, or any type that ``pydantic.TypeAdapter`` accepts.

    Raises:
        UnsupportedConstraintError: it is not guaranteed that the type accepts a text; the error names every field.
    """
    adapter = TypeAdapter(kind)
    reader = CoreReader()
    root = reader.read(adapter.core_schema, Place(_name(kind), 0, {}))
    if reader.refused:
        raise UnsupportedConstraintError(reader.refused)
    document = {**root, "$defs": reader.definitions} if reader.definitions else root
    return TypedSchema(kind, json.dumps(document), tuple(reader.python.values()), adapter.validate_json)


def _name(kind: Any) -> str:
    """A type as users write it, without its annotations."""
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if isinstance(kind, type) and not get_args(kind):
        return kind.__name__
    return str(kind).replace("typing.", "")
