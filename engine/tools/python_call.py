"""The arguments of a Python call: ``city="Rome", days=3``. Booleans are Python's; other values are written as JSON."""

from __future__ import annotations

import json
import keyword
from typing import Any

_Format = dict[str, Any]

_CONSTANTS = {"True": "true", "False": "false"}

PLACE = "$place"
"""A member that says where in the tool's schema a value's schema stands. It is not part of the structural tag."""


class NoArgumentsError(ValueError):
    """A schema cannot be written as the arguments of a call.

    Attributes:
        pointer: the place in the schema.
    """

    def __init__(self, pointer: str, problem: str) -> None:
        super().__init__(problem)
        self.pointer = pointer


def python_arguments(schema: dict[str, Any]) -> _Format:
    """The structural-tag format of the arguments that match a schema, by name, in the order of its properties.

    Raises:
        NoArgumentsError: it says something about the object that a call's arguments cannot.
    """
    for name, value in schema.items():
        if name not in _OF_OBJECT and not (name == "additionalProperties" and value is False):
            raise NoArgumentsError(f"/{name}", "the arguments of a Python call cannot follow it")
    properties = schema.get("properties", {})
    for name in properties:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise NoArgumentsError("/properties", f"{name!r} is no name of a Python argument")
    required = set(schema.get("required", ()))
    if required - properties.keys():
        raise NoArgumentsError("/required", f"{min(required - properties.keys())!r} is not among the properties")
    shared: dict[str, Any] = {name: schema[name] for name in ("$defs", "definitions", "$schema") if name in schema}
    items = [(name, [_const(f"{name}="), _value(name, each, shared)]) for name, each in properties.items()]
    options: list[_Format] = []
    for first, (name, item) in enumerate(items):
        rest = [_more(other, each, required) for other, each in items[first + 1 :]]
        options.append({"type": "sequence", "elements": [*item, *rest]})
        if name in required:
            break
    else:
        options.append(_const(""))
    return {"type": "or", "elements": options}


_OF_OBJECT = frozenset(
    (
        *("type", "properties", "required", "$defs", "definitions"),
        *("$schema", "$id", "$comment", "title", "description", "default", "examples"),
    )
)


def json_arguments(call: str) -> str:
    """The arguments of a call, which match `python_arguments`, as a JSON object."""
    members: list[str] = []
    at = 0
    decoder = json.JSONDecoder()
    while at < len(call):
        name, _, _ = call[at:].partition("=")
        at += len(name) + 1
        constant = next((one for one in _CONSTANTS if call.startswith(one, at)), None)
        end = decoder.raw_decode(call, at)[1] if constant is None else at + len(constant)
        members.append(f"{json.dumps(name)}: {call[at:end] if constant is None else _CONSTANTS[constant]}")
        at = end + len(", ")
    return "{" + ", ".join(members) + "}"


def _more(name: str, item: list[_Format], required: set[str]) -> _Format:
    more = {"type": "sequence", "elements": [_const(", "), *map(dict, item)]}
    return more if name in required else {"type": "optional", "content": more}


def _value(name: str, schema: Any, shared: dict[str, Any]) -> _Format:
    if isinstance(schema, dict) and schema.get("type") == "boolean" and not {"enum", "const"} & schema.keys():
        return {"type": "or", "elements": [_const(text) for text in _CONSTANTS]}
    whole = {**shared, **schema} if isinstance(schema, dict) else schema
    return {"type": "json_schema", "json_schema": whole, "close_objects": True, PLACE: f"#/properties/{name}"}


def _const(text: str) -> _Format:
    return {"type": "const_string", "value": text}
