"""References between the named parts of a core schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from draftline.structured.types.core.place import CoreSchema


def leads_to_itself(ref: str, schemas: Mapping[str, CoreSchema]) -> bool:
    """Whether a named part is recursive: it contains a reference to itself, perhaps by way of others."""
    seen: set[str] = set()
    waiting = list(_references(schemas[ref]))
    while waiting:
        one = waiting.pop()
        if one not in seen:
            seen.add(one)
            waiting.extend(_references(schemas[one]))
    return ref in seen


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, Mapping):
        if part.get("type") == "definition-ref":
            yield part["schema_ref"]
        for key, value in part.items():
            if key not in ("metadata", "serialization", "config", "default"):
                yield from _references(value)
    elif isinstance(part, list | tuple):
        for value in part:
            yield from _references(value)
