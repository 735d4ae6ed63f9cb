"""Objects with fields: models, dataclasses, TypedDicts and named tuples. They get no other members unless they allow them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from draftline.structured.errors import Violation
from draftline.structured.types.core.aliases import Branch, Member, aliases_of
from draftline.structured.types.core.collections import exactly
from draftline.structured.types.core.hashing import is_written
from draftline.structured.types.core.place import NOTHING, CoreSchema, Fragment, Place, Reader, UnwritableError

_ANY: Final[CoreSchema] = {"type": "any"}


def read_model(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """Models of pydantic, root models too."""
    kind = schema["cls"]
    _check_class(reader, kind, place)
    if schema.get("custom_init"):
        reader.unenforced(place, "__init__", f"{kind.__name__}.__init__ is Python code")
    if schema.get("post_init") and not kind.model_post_init.__module__.startswith("pydantic."):
        reader.unenforced(place, "model_post_init", f"{kind.__name__}.model_post_init is Python code")
    for name, one in getattr(kind, "__private_attributes__", {}).items():
        if getattr(one, "default_factory_takes_validated_data", False):
            reader.unenforced(place, "default_factory", f"the default of {kind.__name__}.{name} is Python code")
    config = dict(schema.get("config") or {})
    if schema.get("extra_behavior"):
        config["extra_fields_behavior"] = schema["extra_behavior"]
    return reader.read(schema["schema"], replace(place, config=config))


def read_dataclass(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """Dataclasses, of pydantic and of the standard library."""
    _check_class(reader, schema["cls"], place)
    hooks = schema.get("post_init") or ()
    for hook in ["__post_init__"] if hooks is True else hooks:
        reader.unenforced(place, hook, f"{schema['cls'].__name__}.{hook} is Python code")
    config = schema.get("config")
    return reader.read(schema["schema"], place if config is None else replace(place, config=config))


def _check_class(reader: Reader, kind: type, place: Place) -> None:
    """Raise UnwritableError for classes without instances, and record a user's code that makes them."""
    if inspect.isabstract(kind):
        raise place.unwritable("type", f"{kind.__name__} is an abstract class")
    if is_written(inspect.unwrap(kind.__new__)):  # around it, a deprecated class has a function that warns
        reader.unenforced(place, "__new__", f"{kind.__name__}.__new__ is Python code")


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
    fields = [
        (name, one, one.get("required", total) or _has_uncertain_default(one["schema"], place))
        for name, one in schema["fields"].items()
    ]
    return _object(reader, schema, place, fields)


def read_named_tuple(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """Named tuples, as arrays."""
    _check_class(reader, schema["cls"], place)
    items = [reader.read(one["schema"], place.item(one["name"])) for one in schema["fields"]]
    # Fields of msgspec that are given by keyword may stand behind others with defaults.
    needed = [index for index, one in enumerate(schema["fields"], 1) if not _may_be_absent(one["schema"], place)]
    return exactly(items, max(needed, default=0))


def read_call(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """Calls: pydantic up to 2.13 describes named tuples so."""
    arguments = schema["arguments_schema"]
    if not hasattr(schema["function"], "_fields") or arguments["type"] != "arguments":
        return reader.refuse(place, "call", "functions are not read from JSON")
    return read_named_tuple(reader, {"cls": schema["function"], "fields": arguments["arguments_schema"]}, place)


def _may_be_absent(schema: CoreSchema, place: Place) -> bool:
    """Whether a field has a default that pydantic takes as it is."""
    return schema["type"] == "default" and not _has_uncertain_default(schema, place)


def _has_uncertain_default(schema: CoreSchema, place: Place) -> bool:
    """Whether a field has a default that may fail: it is validated, or made of the other fields' values."""
    validated = place.option(schema, "validate_default", "validate_default")
    return schema["type"] == "default" and bool(validated or schema.get("default_factory_takes_data"))


def _object(
    reader: Reader, schema: CoreSchema, place: Place, fields: Iterable[tuple[str, CoreSchema, bool]]
) -> Fragment:
    """An object of fields, each with its name, its schema and whether it is required."""
    members: list[Member] = []
    missing: list[Violation] = []
    for name, one, required in fields:
        aliases = aliases_of(name, one, place.config)
        if not aliases:
            return reader.refuse(place.field(name), "alias", "pydantic reads it by neither its name nor an alias")
        inner = replace(place.field(name), depth=place.depth + max(map(len, aliases)))
        try:
            value = reader.read(one["schema"], inner)
        except UnwritableError as error:
            value = NOTHING
            missing.extend(error.violations if required else ())
        members.append(Member(name, aliases, value, required))
    if missing:
        raise UnwritableError(missing)
    other_names = {str(alias[0]) for member in members for alias in member.aliases}
    behaviour = schema.get("extra_behavior") or place.config.get("extra_fields_behavior") or "ignore"
    fragment = _written(reader, place, members)
    # What is written elsewhere, others may find there.
    while fragment is not None and any(
        one.avoid_misreading(fragment, reader.definitions, behaviour == "ignore") for one in members
    ):
        fragment = _written(reader, place, members)
    if fragment is None:
        return {}
    keys = schema.get("extras_keys_schema")
    if keys is not None and reader.resolve(keys)["type"] != "str":
        behaviour = "forbid"  # pydantic fails at names that become other values than strings
    if behaviour == "allow" and schema["type"] != "dataclass-args":
        properties = fragment["properties"]
        fragment["additionalProperties"] = reader.read(schema.get("extras_schema") or _ANY, place.item())
        properties.update({name: False for name in sorted(other_names - properties.keys())})
        if keys is not None:
            fragment["propertyNames"] = {"anyOf": [reader.read_key(keys, place), {"enum": [*properties]}]}
    return fragment


def _written(reader: Reader, place: Place, members: list[Member]) -> Fragment | None:
    """The object with each member at its place; None if that is refused."""
    root = Branch()
    for index, one in enumerate(members):
        if not root.add(one.written, one.fragment, one.required):
            other = next(other for other in members[:index] if one.overlaps(other))
            reason = f"another field, {other.name}, is read from {one.written[0]!r} too"
            reader.refuse(place.field(one.name), "alias", reason)
            return None
    fragment = root.fragment()
    if fragment is None:
        reader.refuse(place, "alias", "an AliasPath with a negative index, or with indices and names in one place")
    return fragment
