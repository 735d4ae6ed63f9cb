"""Arrays and dicts: list, tuple, set, deque, dict and their kin."""

from __future__ import annotations

from typing import Final

from draftline.structured.json_schema.enumerated import MAX_VALUES
from draftline.structured.types.core.hashing import unhashable
from draftline.structured.types.core.place import CoreSchema, Fragment, Place, Reader

_ANY: Final[CoreSchema] = {"type": "any"}

SCALARS: Final[Fragment] = {"type": ["null", "boolean", "number", "string"], "format": "double"}
"""The values of JSON that are hashable."""


def read_list(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """Lists, and what is read from a list."""
    items = reader.read(schema.get("items_schema") or _ANY, place.item())
    return _sized({"type": "array", "items": items}, schema)


def read_set(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """Sets. Items are unique if they are enumerated; pydantic drops other items that occur again."""
    inner = schema.get("items_schema") or _ANY
    if reader.resolve(inner)["type"] == "any":
        items = SCALARS
    elif part := unhashable(reader, inner):
        return reader.refuse(place, schema["type"], f"its items are not hashable, because {part} is not")
    else:
        items = reader.read(inner, place.item())
    fragment = _sized({"type": "array", "items": items}, schema)
    values = items.get("enum", [])
    if 0 < len(values) <= MAX_VALUES and len({type(value) for value in values}) == 1:
        fragment["uniqueItems"] = True
        fragment["maxItems"] = min(fragment.get("maxItems", len(values)), len(values))
    elif fragment.get("minItems", 0) > 1:
        return reader.refuse(
            place, "min_length", "different items can be guaranteed only for an Enum or a Literal of one type"
        )
    return fragment


def read_tuple(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """Tuples: items by index, of which one schema may repeat."""
    schemas = list(schema.get("items_schema") or [])
    variadic = schema.get("variadic_item_index")
    if variadic is not None and variadic != len(schemas) - 1:
        return reader.refuse(place, "tuple", "items behind the repeated ones")
    prefix = [reader.read(one, place.item(str(index))) for index, one in enumerate(schemas)]
    fragment = _sized({"type": "array", "items": False if variadic is None else prefix.pop()}, schema)
    if prefix:
        fragment["prefixItems"] = prefix
        fragment["minItems"] = max(fragment.get("minItems", 0), len(prefix))
    return fragment


def exactly(items: list[Fragment], required: int | None = None) -> Fragment:
    """The array of these items, of which the last ones may be missing."""
    if not items:
        return {"type": "array", "maxItems": 0}
    return {
        "type": "array",
        "prefixItems": items,
        "items": False,
        "minItems": len(items) if required is None else required,
    }


def read_dict(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """Dicts: objects whose names are keys."""
    keys_schema = schema.get("keys_schema") or {"type": "str"}
    keys = reader.read_key(keys_schema, place.item("key"))
    values = reader.read(schema.get("values_schema") or _ANY, place.item())
    minimum, maximum = schema.get("min_length") or 0, schema.get("max_length")
    fragment: Fragment = {"type": "object"}
    if keys.keys() == {"enum"}:
        fragment["properties"] = dict.fromkeys(keys["enum"], values)
        fragment["additionalProperties"] = False
    else:
        if keys != {"type": "string"}:
            fragment["propertyNames"] = keys
        fragment["additionalProperties"] = values
        if minimum > 1:
            return reader.refuse(place, "min_length", "different keys cannot be guaranteed unless they are enumerated")
    if minimum:
        fragment["minProperties"] = minimum
    if maximum is not None:
        fragment["maxProperties"] = maximum
    return fragment


def _sized(fragment: Fragment, schema: CoreSchema) -> Fragment:
    if minimum := schema.get("min_length"):
        fragment["minItems"] = minimum
    if (maximum := schema.get("max_length")) is not None:
        fragment["maxItems"] = maximum
    if (maximum := schema.get("maxlen")) is not None:
        fragment["maxItems"] = min(maximum, fragment.get("maxItems", maximum))
    return fragment
