"""The arguments of a Python call: ``city="Rome", days=3``. Booleans are Python's; other values are written as JSON."""

from __future__ import annotations

import json
import keyword
from typing import Any

from draftline.structured.errors import InvalidConstraintError
from draftline.structured.json_schema.bundling import bundled
from draftline.structured.json_schema.parsing import escape

_Format = dict[str, Any]

_CONSTANTS = {"True": "true", "False": "false"}

PLACE = "$place"
"""A member of a value's format: a pointer in its schema, and its place in the tool's. It is no part of the tag."""

_TOOL = "urn:draftline:tool"
"""The URI of a tool's schema that has none, in the documents of its values."""

_REFERENCES = frozenset(("$ref", "$dynamicRef", "$recursiveRef"))
_NARROWING = _REFERENCES | {"enum", "const", "not", "allOf", "anyOf", "oneOf", "if"}
"""The keywords that can leave out true or false."""


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
    items = [(name, [_const(f"{name}="), _value(name, each, schema)]) for name, each in properties.items()]
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


def _value(name: str, schema: Any, tool: dict[str, Any]) -> _Format:
    if isinstance(schema, dict) and schema.get("type") == "boolean" and not _NARROWING & schema.keys():
        return {"type": "or", "elements": [_const(text) for text in _CONSTANTS]}
    document, place = schema, ("", f"#/properties/{name}")
    dialect = {"$schema": tool["$schema"]} if "$schema" in tool else {}
    if _refers(schema):
        document = _within_tool(name, dialect, tool)
        keyword = next(word for word in ("$defs", "definitions") if word in document)
        place = (f"/{keyword}/{escape(next(iter(document[keyword])))}", "#")
    elif isinstance(schema, dict):
        document = {**dialect, **schema}
    return {"type": "json_schema", "json_schema": document, "close_objects": True, PLACE: place}


def _refers(schema: Any) -> bool:
    """Whether a schema may have references, whose targets are anywhere in the tool's schema."""
    text = json.dumps(schema)
    return any(f'"{keyword}"' in text for keyword in _REFERENCES)


def _within_tool(name: str, dialect: dict[str, Any], tool: dict[str, Any]) -> dict[str, Any]:
    """The schema of a property as a reference into the tool's schema, where all other references keep their targets."""
    reference = {**dialect, "$ref": f"{_TOOL}#/properties/{name}"}
    try:
        document: dict[str, Any] = json.loads(bundled(json.dumps(reference), {_TOOL: json.dumps(tool)}))
    except InvalidConstraintError as error:
        raise NoArgumentsError("", str(error).removeprefix(f"{_TOOL}: ")) from None
    return document


def _const(text: str) -> _Format:
    return {"type": "const_string", "value": text}
