"""Validators that are functions. pydantic's own are known here; others are Python code that nothing can enforce."""

from __future__ import annotations

import functools
import inspect
import ipaddress
import json
import operator
import zoneinfo
from collections.abc import Callable, Iterable
from typing import Any, Final

import pydantic
from pydantic import types
from pydantic.json_schema import GenerateJsonSchema

from draftline.structured.errors import InvalidConstraintError
from draftline.structured.json_schema import DEFAULT_LIMITS, unenforceable
from draftline.structured.types.core.limits import LIMITS, Limit
from draftline.structured.types.core.place import CoreSchema, Fragment, Place, Reader, name_of, text
from draftline.structured.types.texts import encoded, network
from draftline.structured.types.texts.trees import tree

Known = Callable[[Reader, CoreSchema, Place], Fragment]

_MAX_BYTE_SIZE: Final = 10**18


def _inner(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    return reader.read(schema["schema"], place)


def _text(pattern: str) -> Known:
    return lambda reader, schema, place: text(tree(pattern))


def _unwritable(reason: str) -> Known:
    def read(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
        raise place.unwritable("type", reason)

    return read


def _zone(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """The names of time zones that this machine knows."""
    names = sorted(zoneinfo.available_timezones())
    return {"enum": names} if names else reader.refuse(place, "ZoneInfo", "this machine knows no time zones")


_ZONE: Final = "validate_str_is_valid_iana_tz"

_PASSING: Final = frozenset(
    [
        "GenerateSchema._path_schema.<locals>.path_validator",
        "path_schema_prepare_pydantic_annotations.<locals>.path_validator",
        "Secret.__get_pydantic_core_schema__.<locals>.<lambda>",
        "GenerateSchema._literal_schema.<locals>.<lambda>",
    ]
)
"""Functions of pydantic that change a value's Python type and reject nothing of their own."""

_KEEPING: Final = frozenset(
    [
        "_BaseUrl.__get_pydantic_core_schema__.<locals>.wrap_val",
        "_BaseMultiHostUrl.__get_pydantic_core_schema__.<locals>.wrap_val",
        "sequence_validator",
        "deque_validator",
        "defaultdict_validator",
        "forbid_inf_nan_check",
    ]
)
"""Functions of pydantic after which a value has the limits that it had before."""

_SECRETS: Final = (pydantic.SecretStr, pydantic.SecretBytes)
"""Classes whose values have a length and nothing else."""


def _email(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """Email addresses within the limits of a string."""
    limits, address = reader.read(schema["schema"], place), text(network.email_text())
    if limits.get("maxLength", 0) >= network.MAX_EMAIL_LENGTH:
        del limits["maxLength"]
    return address if limits == {"type": "string"} else {"allOf": [address, limits]}


def _expression(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """Regular expressions that Python reads, among others."""
    return {"type": "string", "format": "regex"}


_BY_NAME: Final[dict[str, Known]] = {
    **dict.fromkeys([*_PASSING, *_KEEPING], _inner),
    "IPvAnyAddress._validate": _text(f"{network.IPV4}|{network.IPV6}"),
    "IPvAnyInterface._validate": _text(f"{network.INTERFACE4}|{network.INTERFACE6}"),
    "IPvAnyNetwork._validate": _text(f"{network.NETWORK4}|{network.NETWORK6}"),
    "EmailStr._validate": _email,
    "NameEmail._validate": lambda reader, schema, place: text(network.name_email_text()),
    "ByteSize._validate": lambda reader, schema, place: {"type": "integer", "minimum": 0, "maximum": _MAX_BYTE_SIZE},
    "fraction_validator": _text("-?(?:0|[1-9][0-9]{0,17})(?:/[1-9][0-9]{0,17})?"),
    "PathType.validate_file": _unwritable("whether a file exists cannot be guaranteed"),
    "PathType.validate_directory": _unwritable("whether a directory exists cannot be guaranteed"),
    "PathType.validate_socket": _unwritable("whether a socket exists cannot be guaranteed"),
    "PathType.validate_new": _unwritable("whether a path is free cannot be guaranteed"),
    "import_string": _unwritable("whether an object can be imported cannot be guaranteed"),
    **dict.fromkeys([_ZONE, f"GenerateSchema._zoneinfo_schema.<locals>.{_ZONE}"], _zone),
    **dict.fromkeys(["pattern_either_validator", "pattern_str_validator"], _expression),
    "pattern_bytes_validator": _unwritable("JSON has texts, and no regular expressions over bytes"),
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
    if limits := _limits(function):
        return read_limited(reader, schema["schema"], place, limits.items())
    if isinstance(function, operator.attrgetter):  # use_enum_values
        return _inner(reader, schema, place)
    coded = _encoded(function)
    if coded is not None:
        return _within(reader, schema["schema"], place, coded)
    if _is_internal(function):
        return _unknown(reader, function, place)
    reader.unenforced(
        place, schema["type"].removeprefix("function-"), f"the validator {_code_name(function)} is Python code"
    )
    return as_stated(schema, reader.read(schema["schema"], place))


def is_code(schema: CoreSchema) -> bool:
    """Whether a part is a function of a user's in place of a schema."""
    if schema["type"] != "function-plain":
        return False
    function = schema["function"]["function"]
    return _known(function) is None and not _is_internal(function)


def returns_another(schema: CoreSchema) -> bool:
    """Whether a function of a user's, behind or around a schema, may return another value than the schema reads."""
    if schema["type"] not in ("function-after", "function-wrap"):
        return False
    function = schema["function"]["function"]
    known = _known(function) or _limits(function) or _encoded(function) or isinstance(function, operator.attrgetter)
    return not known and not _is_internal(function)


def note_code(reader: Reader, schema: CoreSchema, place: Place) -> None:
    """Record a function in place of a schema as a validator in Python."""
    reader.unenforced(place, "plain", f"the validator {_code_name(schema['function']['function'])} is Python code")


def read_plain(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """A function in place of a schema. The type must say by other means which JSON it reads."""
    function = schema["function"]["function"]
    known = _known(function)
    if known is not None:
        return known(reader, schema, place)
    if _is_internal(function):
        return _unknown(reader, function, place)
    given = schema.get("json_schema_input_schema")
    note_code(reader, schema, place)
    if given is not None and given["type"] != "any":
        return reader.read(given, place)
    described = _described(schema)
    if described is None:
        reason = f"only the validator {name_of(function)} knows its values; give it a json_schema_input_type"
        return reader.refuse(place, "plain", reason)
    return described


def _limits(function: Any) -> dict[str, Any]:
    """The limits that pydantic checks with a function of its own, and no more than these."""
    if not isinstance(function, functools.partial) or getattr(function.func, "__name__", "") not in LIMITS:
        return {}
    return function.keywords if _module(function.func) == "pydantic._internal._validators" else {}


def read_limited(reader: Reader, schema: CoreSchema, place: Place, limits: Iterable[tuple[str, Any]]) -> Fragment:
    """A schema within limits that pydantic checks around it."""
    for name, value in limits:
        inner = Limit(name, value, reader, place, keeps_limit).within(schema)
        if inner is None:
            return reader.refuse(place, name, f"{name} cannot be enforced: not all values of this type can have it")
        schema = inner
    return reader.read(schema, place)


def keeps_limit(function: Any, limit: str) -> bool:
    """Whether a value has a limit after a function around its schema if it had it before.

    Python code is taken to keep it: it cannot be enforced anyway, and the type names it.
    """
    if isinstance(function, functools.partial):
        function = function.func
    if function in _SECRETS:
        return limit in ("min_length", "max_length")
    if _module(function) == "collections":
        return True
    if _is_internal(function) or isinstance(function, operator.attrgetter) or _encoded(function) is not None:
        name = getattr(function, "__qualname__", "")
        return name in _KEEPING or name in LIMITS or name == "EmailStr._validate"
    return _known(function) is None


_INTERNAL: Final = ("pydantic.types", "pydantic.networks", "pydantic.color", "pydantic._internal")
_FOR_PYTHON: Final = frozenset(
    ["apply_known_metadata.<locals>.val_func", "EncodedBytes.decode", "EncodedStr.decode_str"]
)
"""Functions of pydantic that call a user's."""


def _is_internal(function: Any) -> bool:
    """Whether a function is a part of pydantic, and not one that users write or name."""
    if isinstance(function, functools.partial):
        function = function.func
    module, name = _module(function), getattr(function, "__qualname__", "")
    if module.endswith("_decorators_v1") or name in _FOR_PYTHON:
        return False
    return module.startswith(_INTERNAL) and (module.startswith("pydantic._internal") or "." in name)


def _unknown(reader: Reader, function: Any, place: Place) -> Fragment:
    return reader.refuse(place, "type", f"Draftline does not know the rules of pydantic's {name_of(function)}")


def _described(schema: CoreSchema) -> Fragment | None:
    """The JSON Schema that a type states for itself; None if there is none."""
    try:
        stated = GenerateJsonSchema().generate(dict(schema), mode="validation")
    except Exception:  # noqa: BLE001 - the type's own code may raise any
        return None
    if "$defs" in stated or not stated.keys() - {"title", "description", "default", "examples"}:
        return None
    return stated


def as_stated(schema: CoreSchema, fragment: Fragment) -> Fragment:
    """The strings that functions in Python take, if their type states more than the schema before or behind them says.

    Types of countries, currencies and languages have an enum or a pattern in their ``__get_pydantic_json_schema__``.
    """
    if fragment.get("type") != "string" or "pydantic_js_functions" not in schema.get("metadata", {}):
        return fragment
    stated = _described(schema)
    if stated is None or stated.get("type", "string") != "string":
        return fragment
    both = {"allOf": [fragment, stated]}
    try:
        return fragment if unenforceable(json.dumps(both), DEFAULT_LIMITS) else both
    except (InvalidConstraintError, TypeError):  # no JSON Schema, in spite of its name
        return fragment


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


def _within(reader: Reader, schema: CoreSchema, place: Place, coded: Fragment) -> Fragment:
    """Encoded texts within the limits that the schema before the decoder has: those of the text."""
    if schema["type"] == "bytes" and place.config.get("val_json_bytes", "utf8") != "utf8":
        return reader.refuse(place, "val_json_bytes", "its texts would be encoded twice")
    limits = reader.read(schema, place)
    return coded if limits == {"type": "string"} else {"allOf": [coded, limits]}


def _module(function: Any) -> str:
    return str(getattr(function, "__module__", "") or "")


def _code_name(function: Any) -> str:
    """The name of a user's function, which one of pydantic's may call: a predicate, say."""
    if inspect.isfunction(function) and _module(function).startswith("pydantic"):
        enclosed = inspect.getclosurevars(function).nonlocals.values()
        function = next(filter(callable, (getattr(one, "func", one) for one in enclosed)), function)
    return name_of(function)
