"""``unhashable``: what keeps the values of a schema from being items of a set or keys of a dict."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from types import FunctionType
from typing import Any, Final

from draftline.structured.types.core.place import CoreSchema, Reader

_UNHASHABLE: Final = frozenset(
    ["list", "set", "dict", "any", "typed-dict", "deque", "ordered-dict", "counter", "generator", "defaultdict"]
)
_ANY: Final[CoreSchema] = {"type": "any"}


def unhashable(reader: Reader, schema: CoreSchema) -> str | None:
    """The name of a part whose values are not hashable; None if all values are. Functions of users change no value here."""
    return _Search(reader).part(schema)


class _Search:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._seen: set[int] = set()

    def part(self, schema: CoreSchema) -> str | None:
        """The first unhashable part."""
        schema = self._reader.resolve(schema)
        if id(schema) in self._seen:
            return None
        self._seen.add(id(schema))
        kind: str = schema["type"]
        if kind in _UNHASHABLE:
            return kind
        if kind in ("model", "dataclass", "named-tuple"):
            return self._instance(schema)
        if kind == "call":  # a named tuple, up to pydantic 2.13
            return self._fields(schema["arguments_schema"]["arguments_schema"])
        if kind in ("union", "tagged-union"):
            choices: Any = schema["choices"].values() if kind == "tagged-union" else schema["choices"]
            return self._first(one[0] if isinstance(one, tuple) else one for one in choices)
        if kind in ("tuple", "frozenset"):
            items = schema.get("items_schema") or []
            return self._first(items if isinstance(items, list) else [items])
        if kind == "chain":
            return self.part(schema["steps"][-1])
        if kind == "json":
            return self.part(schema.get("schema") or _ANY)
        key = {"lax-or-strict": "strict_schema", "json-or-python": "json_schema"}.get(kind, "schema")
        return self.part(schema[key]) if key in schema else None

    def _first(self, schemas: Iterable[CoreSchema]) -> str | None:
        return next(filter(None, map(self.part, schemas)), None)

    def _fields(self, fields: Iterable[CoreSchema]) -> str | None:
        return self._first(one["schema"] for one in fields)

    def _instance(self, schema: CoreSchema) -> str | None:
        """The unhashable part of a class: one of its fields, unless the class has a hash of its own."""
        cls = schema["cls"]
        own = cls.__hash__
        struct = None if isinstance(own, FunctionType) else getattr(cls, "__struct_config__", None)
        if own is None or (struct is not None and struct.eq and not struct.frozen):
            return str(cls.__name__)
        if own is object.__hash__ or (struct is not None and not struct.eq) or is_written(own):
            return None
        inner = schema
        while "schema" in inner and inner["type"] != "default":
            inner = self._reader.resolve(inner["schema"])
        fields = inner.get("fields")
        if fields is None:  # a root model
            return self.part(schema["schema"])
        if isinstance(fields, dict):
            fields = [{"name": name, **one} for name, one in fields.items()]
        return self._fields(one for one in fields if _counts(cls, one["name"]))


def is_written(function: Any) -> bool:
    """Whether a user wrote a function. Those that dataclasses and attrs generate have no file."""
    return (
        isinstance(function, FunctionType)
        and not function.__code__.co_filename.startswith("<")
        and not str(function.__module__).startswith("pydantic.")
    )


def _counts(cls: type, name: str) -> bool:
    """Whether a field is a part of the hash of its class."""
    if not dataclasses.is_dataclass(cls):
        return True
    found = [one for one in dataclasses.fields(cls) if one.name == name]
    return any(one.compare if one.hash is None else one.hash for one in found)
