"""Objects with fields: models, dataclasses, TypedDicts and named tuples. They get no other members unless they allow them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from draftline.structured.types.core.collections import exactly
from draftline.structured.types.core.place import CoreSchema, Fragment, Place, Reader

_ANY: Final[CoreSchema] = {"type": "any"}

Alias = tuple[str | int, ...]
"""Where a field's value stands: names of members, and indices of items."""


def read_model(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """Models of pydantic, root models too."""
    kind = schema["cls"]
    if schema.get("custom_init"):
        reader.unenforced(place, "__init__", f"{kind.__name__}.__init__ is Python code")
    if schema.get("post_init") and not kind.model_post_init.__module__.startswith("pydantic."):
        reader.unenforced(place, "model_post_init", f"{kind.__name__}.model_post_init is Python code")
    config = dict(schema.get("config") or {})
    if schema.get("extra_behavior"):
        config["extra_fields_behavior"] = schema["extra_behavior"]
    return reader.read(schema["schema"], replace(place, config=config))


def read_dataclass(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """Dataclasses, of pydantic and of the standard library."""
    if schema.get("post_init"):
        name = schema["cls"].__name__
        reader.unenforced(place, "__post_init__", f"{name}.__post_init__ is Python code")
    config = schema.get("config")
    return reader.read(schema["schema"], place if config is None else replace(place, config=config))


def read_model_fields(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """The fields of a model."""
    fields = [(name, one, not _may_be_absent(one["schema"], place)) for name, one in schema["fields"].items()]
    return _object(reader, schema, place, fields)


def read_dataclass_args(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """The fields of a dataclass that its constructor takes."""
    fields = [
        (one["name"], one, not _may_be_absent(one["schema"], place))
        for one in schema["fields"]
        if one.get("init", True)
    ]
    return _object(reader, schema, place, fields)


def read_typed_dict(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """The items of a TypedDict."""
    place = replace(place, config=schema.get("config") or place.config)
    total = schema.get("total", place.config.get("typed_dict_total", True))
    fields = [(name, one, one.get("required", total)) for name, one in schema["fields"].items()]
    return _object(reader, schema, place, fields)


def read_named_tuple(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """Named tuples, as arrays."""
    items = [reader.read(one["schema"], place.item(one["name"])) for one in schema["fields"]]
    return exactly(items, sum(not _may_be_absent(one["schema"], place) for one in schema["fields"]))


def read_call(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """Calls: pydantic up to 2.13 describes named tuples so."""
    arguments = schema["arguments_schema"]
    if not hasattr(schema["function"], "_fields") or arguments["type"] != "arguments":
        return reader.refuse(place, "call", "functions are not read from JSON")
    return read_named_tuple(reader, {"fields": arguments["arguments_schema"]}, place)


def _may_be_absent(schema: CoreSchema, place: Place) -> bool:
    """Whether a field has a default that pydantic takes as it is. One that is validated may be rejected."""
    return schema["type"] == "default" and not place.option(schema, "validate_default", "validate_default")


@dataclass(slots=True)
class _Branch:
    """Members of an object that aliases lead through."""

    fields: dict[str | int, Fragment] = field(default_factory=dict)
    branches: dict[str | int, _Branch] = field(default_factory=dict)
    required: set[str | int] = field(default_factory=set)

    def add(self, path: Alias, fragment: Fragment, required: bool) -> bool:
        """Put a field at a path; False if another one is in the way."""
        first, rest = path[0], path[1:]
        if required:
            self.required.add(first)
        if not rest:
            free = first not in self.fields and first not in self.branches
            self.fields[first] = fragment
            return free
        return first not in self.fields and self.branches.setdefault(first, _Branch()).add(rest, fragment, required)

    def fragment(self) -> Fragment | None:
        """The schema; None if names and indices are mixed, or an index is negative."""
        members: dict[str | int, Fragment | None] = dict(self.fields)
        members |= {name: branch.fragment() for name, branch in self.branches.items()}
        if any(member is None for member in members.values()):
            return None
        if all(isinstance(name, str) for name in members):
            required = [name for name in members if name in self.required]
            closed: Fragment = {"type": "object", "properties": members, "additionalProperties": False}
            return {**closed, "required": required} if required else closed
        if not all(isinstance(name, int) and name >= 0 for name in members):
            return None
        length = max(int(name) for name in members) + 1
        return exactly([members.get(index) or {"type": "null"} for index in range(length)])


def _object(
    reader: Reader, schema: CoreSchema, place: Place, fields: Iterable[tuple[str, CoreSchema, bool]]
) -> Fragment:
    """An object of fields, each with its name, its schema and whether it is required."""
    root = _Branch()
    other_names: set[str] = set()
    for name, one, required in fields:
        aliases = _aliases(name, one, place)
        if not aliases:
            return reader.refuse(place.field(name), "alias", "pydantic reads it by neither its name nor an alias")
        path = min(aliases, key=len)
        other_names.update(str(alias[0]) for alias in aliases)
        inner = replace(place.field(name), depth=place.depth + len(path))
        if not root.add(path, reader.read(one["schema"], inner), required):
            return reader.refuse(place.field(name), "alias", f"another field is read from {path[0]!r} too")
    fragment = root.fragment()
    if fragment is None:
        return reader.refuse(
            place, "alias", "an AliasPath with a negative index, or with indices and names in one place"
        )
    if not isinstance(fragment.get("properties", {}), dict):
        return reader.refuse(place, "alias", "an AliasPath that begins with an index")
    behaviour = schema.get("extra_behavior") or place.config.get("extra_fields_behavior") or "ignore"
    if behaviour == "allow" and schema["type"] != "dataclass-args":
        properties = fragment["properties"]
        fragment["additionalProperties"] = reader.read(schema.get("extras_schema") or _ANY, place.item())
        properties.update({name: False for name in sorted(other_names - properties.keys())})
        if schema.get("extras_keys_schema"):
            fragment["propertyNames"] = {
                "anyOf": [reader.read_key(schema["extras_keys_schema"], place), {"enum": [*properties]}]
            }
    return fragment


def _aliases(name: str, one: CoreSchema, place: Place) -> list[Alias]:
    """The paths by which pydantic finds a field, in its order."""
    config = place.config
    by_alias = config.get("validate_by_alias")
    by_name = config.get("validate_by_name") or config.get("populate_by_name")
    alias: Any = one.get("validation_alias")
    if alias is None:
        return [(name,)]
    found: list[Alias] = []
    if by_alias is not False:
        if isinstance(alias, str):
            found.append((alias,))
        elif alias and isinstance(alias[0], list):
            found.extend(tuple(path) for path in alias)
        else:
            found.append(tuple(alias))
    if by_name:
        found.append((name,))
    return found
