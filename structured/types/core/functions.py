"""Validators that are functions. pydantic's own are known here; others are Python code that nothing can enforce."""

from __future__ import annotations

import functools
import ipaddress
import operator
from collections.abc import Callable
from typing import Any, Final

import pydantic
from pydantic import types
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.json_schema import GenerateJsonSchema

from draftline.structured.types.core.place import CoreSchema, Fragment, Place, Reader, text
from draftline.structured.types.texts import encoded, network
from draftline.structured.types.texts.trees import tree

Known = Callable[[Reader, CoreSchema, Place], Fragment]

_MAX_BYTE_SIZE: Final = 10**18


def _inner(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    return reader.read(schema["schema"], place)


def _text(pattern: str) -> Known:
    return lambda reader, schema, place: text(tree(pattern))


def _refused(reason: str) -> Known:
    return lambda reader, schema, place: reader.refuse(place, "type", reason)


def _sized(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """Pydantic's own check of a length, around a schema that has no lengths."""
    fragment = reader.read(schema["schema"], place)
    limits: dict[str, int] = schema["function"]["function"].keywords
    names = {"array": ("minItems", "maxItems"), "string": ("minLength", "maxLength")}
    low, high = names.get(str(fragment.get("type")), (None, None))
    if low is None or high is None or (fragment.get("uniqueItems") is None and _is_set(schema)):
        return reader.refuse(place, "length", "the length of this type cannot be enforced")
    if "min_length" in limits:
        fragment[low] = max(limits["min_length"], fragment.get(low, 0))
    if "max_length" in limits:
        fragment[high] = min(limits["max_length"], fragment.get(high, limits["max_length"]))
    return fragment


def _is_set(schema: CoreSchema) -> bool:
    return schema["schema"].get("type") in ("set", "frozenset")


_PASSING: Final = frozenset(
    [
        "GenerateSchema._path_schema.<locals>.path_validator",
        "path_schema_prepare_pydantic_annotations.<locals>.path_validator",
        "_BaseUrl.__get_pydantic_core_schema__.<locals>.wrap_val",
        "_BaseMultiHostUrl.__get_pydantic_core_schema__.<locals>.wrap_val",
        "Secret.__get_pydantic_core_schema__.<locals>.<lambda>",
        "sequence_validator",
        "deque_validator",
        "defaultdict_validator",
    ]
)
"""Functions of pydantic that change a value's Python type and reject nothing of their own."""

_BY_NAME: Final[dict[str, Known]] = {
    **dict.fromkeys(_PASSING, _inner),
    "min_length_validator": _sized,
    "max_length_validator": _sized,
    "IPvAnyAddress._validate": _text(f"{network.IPV4}|{network.IPV6}"),
    "IPvAnyInterface._validate": _text(f"{network.INTERFACE4}|{network.INTERFACE6}"),
    "IPvAnyNetwork._validate": _text(f"{network.NETWORK4}|{network.NETWORK6}"),
    "EmailStr._validate": lambda reader, schema, place: text(network.email_text()),
    "NameEmail._validate": lambda reader, schema, place: text(network.email_text()),
    "ByteSize._validate": lambda reader, schema, place: {"type": "integer", "minimum": 0, "maximum": _MAX_BYTE_SIZE},
    "fraction_validator": _text("-?(?:0|[1-9][0-9]{0,17})(?:/[1-9][0-9]{0,17})?"),
    "PathType.validate_file": _refused("whether a file exists cannot be guaranteed"),
    "PathType.validate_directory": _refused("whether a directory exists cannot be guaranteed"),
    "PathType.validate_new": _refused("whether a path is free cannot be guaranteed"),
    "import_string": _refused("whether an object can be imported cannot be guaranteed"),
    "pattern_either_validator": _refused("regular expressions are not a regular language"),
    "pattern_str_validator": _refused("regular expressions are not a regular language"),
    "pattern_bytes_validator": _refused("regular expressions are not a regular language"),
}
"""Functions of pydantic by their qualified name."""

_BY_CLASS: Final[dict[Any, Known]] = {
    ipaddress.IPv4Address: _text(network.IPV4),
    ipaddress.IPv6Address: _text(network.IPV6),
    ipaddress.IPv4Interface: _text(network.INTERFACE4),
    ipaddress.IPv6Interface: _text(network.INTERFACE6),
    ipaddress.IPv4Network: _text(network.NETWORK4),
    ipaddress.IPv6Network: _text(network.NETWORK6),
    pydantic.SecretStr: _inner,
    pydantic.SecretBytes: _inner,
}
"""Classes that serve as functions."""


def read_after(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """A function behind, around or before a schema."""
    function = schema["function"]["function"]
    known = _known(function)
    if known is not None:
        return known(reader, schema, place)
    if isinstance(function, operator.attrgetter):  # use_enum_values
        return _inner(reader, schema, place)
    coded = _encoded(function)
    if coded is not None:
        return coded
    reader.unenforced(
        place, schema["type"].removeprefix("function-"), f"the validator {_name(function)} is Python code"
    )
    return reader.read(schema["schema"], place)


def read_plain(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """A function in place of a schema. The type must say by other means which JSON it reads."""
    function = schema["function"]["function"]
    known = _known(function)
    if known is not None:
        return known(reader, schema, place)
    given = schema.get("json_schema_input_schema")
    name = _name(function)
    reader.unenforced(place, "plain", f"the validator {name} is Python code")
    if given is not None and given["type"] != "any":
        return reader.read(given, place)
    described = _described(schema)
    if described is None:
        return reader.refuse(
            place, "plain", f"only the validator {name} knows its values; give it a json_schema_input_type"
        )
    return described


def _described(schema: CoreSchema) -> Fragment | None:
    """The JSON Schema that a type states for itself; None if there is none."""
    try:
        stated = GenerateJsonSchema().generate(dict(schema), mode="validation")
    except (PydanticInvalidForJsonSchema, KeyError):
        return None
    if "$defs" in stated or not stated.keys() - {"title", "description", "default", "examples"}:
        return None
    return stated


def _known(function: Any) -> Known | None:
    if isinstance(function, functools.partial):
        function = function.func
    try:
        known = _BY_CLASS.get(function)
    except TypeError:
        known = None
    if known is not None:
        return known
    if function.__class__.__module__.startswith("pydantic") or _module(function).startswith("pydantic"):
        return _BY_NAME.get(getattr(function, "__qualname__", ""))
    return _inner if _module(function) == "collections" else None


def _encoded(function: Any) -> Fragment | None:
    """The texts of pydantic's own base64 types."""
    coding = getattr(function, "__self__", None)
    if not isinstance(coding, types.EncodedBytes | types.EncodedStr):
        return None
    if coding.encoder not in (types.Base64Encoder, types.Base64UrlEncoder):
        return None
    if isinstance(coding, types.EncodedStr):
        return text(encoded.base64_of_ascii())
    return text(encoded.base64_text(url_safe=coding.encoder is types.Base64UrlEncoder))


def _module(function: Any) -> str:
    return str(getattr(function, "__module__", "") or "")


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", None) or repr(function)
