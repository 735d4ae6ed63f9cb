"""``typed_schema``: the strict JSON Schema of a type."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import is_dataclass
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter
from pydantic.errors import PydanticSchemaGenerationError
from pydantic_core import SchemaError
from typing_extensions import is_typeddict

from draftline.structured.errors import InvalidConstraintError, UnsupportedConstraintError, Violation
from draftline.structured.json_schema import DEFAULT_LIMITS, SchemaLimits, unenforceable
from draftline.structured.types.core.place import MAX_DEPTH, CoreSchema, Place, UnwritableError
from draftline.structured.types.core.reader import CoreReader
from draftline.structured.types.plain import plain_by_msgspec, plain_by_pydantic
from draftline.structured.types.structs import core_schema
from draftline.structured.types.typed_schema import TypedSchema

_NESTINGS: Final = (MAX_DEPTH, 32, 16, 8, 4)
"""The levels of recursive types, in the order in which they are tried."""

_ENOUGH: Final = 8
"""Levels that are not given up for a constraint that compiles faster."""

_POINTER: Final = re.compile(r"#(/\S*)")
"""A JSON pointer in an error: users see their type, and not the schema."""

_FEW_SHAPES: Final = SchemaLimits(shapes=8_000)
"""The size of a recursive type: a constraint of more takes seconds to compile."""


def typed_schema(kind: Any) -> TypedSchema[Any]:
    """Derive the schema of a type.

    Args:
        kind: a pydantic model, any type that ``pydantic.TypeAdapter`` accepts, or one of msgspec.

    Raises:
        InvalidConstraintError: it is not such a type.
        UnsupportedConstraintError: it is not guaranteed that the type accepts a text; the error names every field.
    """
    schema, parse, plain = _described(kind)
    name = _name(kind)
    for nesting in _NESTINGS:
        reader = CoreReader(nesting)
        is_last = nesting == _NESTINGS[-1]
        try:
            root = reader.read(schema, Place(name, 0, {}))
        except UnwritableError as error:
            raise UnsupportedConstraintError(dict.fromkeys([*reader.refused, *error.violations])) from None
        except RecursionError:
            if is_last:
                raise UnsupportedConstraintError([Violation(name, "type", "its parts nest too deep")]) from None
            continue  # each level of a recursive type may have many validators
        if reader.refused:
            raise UnsupportedConstraintError(reader.refused)
        document = json.dumps({**root, "$defs": reader.definitions} if reader.definitions else root)
        may_shrink = reader.ends and not is_last
        try:
            _check(document, name, _FEW_SHAPES if reader.ends and nesting > _ENOUGH else DEFAULT_LIMITS)
            break
        except InvalidConstraintError as error:
            if not may_shrink:
                reason = _POINTER.sub(lambda found: _path(found[1], name), str(error))
                raise UnsupportedConstraintError([Violation(name, "type", reason)]) from None
    return TypedSchema(kind, document, tuple(reader.python.values()), parse, plain)


def _described(kind: Any) -> tuple[CoreSchema, Callable[[str], Any], Callable[[Any], Any]]:
    """The core schema of a type, the parser of its texts, and the JSON of its values.

    Raises:
        InvalidConstraintError: neither pydantic nor msgspec knows the type.
    """
    if "msgspec" in sys.modules and _has_msgspec_limits(kind, importlib.import_module("msgspec").Meta):
        try:
            return _described_by_msgspec(kind)
        except Exception as error:
            raise InvalidConstraintError(f"is no type that msgspec knows: {_problem(error)}") from error
    try:
        adapter = TypeAdapter(kind)
        adapter.rebuild()  # an undefined name in an annotation is an error here, and not at the first use
    except PydanticSchemaGenerationError as error:  # no type of pydantic's
        if "msgspec" not in sys.modules:
            raise InvalidConstraintError(f"is no type that pydantic knows: {_problem(error)}") from error
        try:
            return _described_by_msgspec(kind)
        except Exception as other:
            problem = f"is no type that pydantic knows: {_problem(error)} Nor does msgspec: {_problem(other)}"
            raise InvalidConstraintError(problem) from other
    except Exception as error:
        # One of the annotations, which pydantic evaluates and applies here: they are Python code, and may raise any.
        # msgspec would ignore what it does not know.
        raise InvalidConstraintError(f"is no type that pydantic knows: {_problem(error)}") from error
    if not adapter.pydantic_complete:
        raise InvalidConstraintError("is no type that pydantic knows: it is not fully defined")
    return adapter.core_schema, adapter.validate_json, plain_by_pydantic(adapter)


def _described_by_msgspec(kind: Any) -> tuple[CoreSchema, Callable[[str], Any], Callable[[Any], Any]]:
    """Let msgspec describe a type, as `_described` does.

    Raises:
        Exception: msgspec does not know the type, or one of its annotations raised the error.
    """
    info = importlib.import_module("msgspec.inspect").type_info(kind)
    parse = importlib.import_module("msgspec").json.Decoder(kind).decode
    return core_schema(info), parse, plain_by_msgspec(parse)


def _has_msgspec_limits(kind: Any, meta: type) -> bool:
    """Whether a type that pydantic and msgspec know has limits that only msgspec reads: pydantic would ignore them."""
    waiting, seen = [kind], set[int]()
    for one in waiting:
        if id(one) in seen:
            continue
        seen.add(id(one))
        if any(isinstance(each, meta) for each in getattr(one, "__metadata__", ())):
            return True
        waiting.extend(get_args(one))
        if is_dataclass(one) or is_typeddict(one) or hasattr(one, "_fields"):
            with suppress(Exception):  # of an annotation, which pydantic names
                waiting.extend(get_type_hints(one, include_extras=True).values())
    return False


def _problem(error: Exception) -> str:
    """What is wrong with a type, without pydantic's advice to its own users."""
    if isinstance(error, RecursionError):
        return "its annotations nest without end; an alias that names itself must be a TypeAliasType"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines) if isinstance(error, SchemaError) else lines[0] if lines else type(error).__name__


def _check(document: str, name: str, limits: SchemaLimits) -> None:
    """Refuse what the schema says and no backend enforces, by the path of the field.

    Raises:
        InvalidConstraintError: it is over a limit, or has no value.
        UnsupportedConstraintError: parts of it cannot be enforced.
    """
    violations = unenforceable(document, limits=limits)
    if violations:
        raise UnsupportedConstraintError(
            Violation(_path(one.pointer, name), one.keyword, one.reason) for one in violations
        )


def _path(pointer: str, name: str) -> str:
    """The path of a field from a JSON pointer into the schema: ``/$defs/Item/properties/price`` is ``Item.price``."""
    steps = [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]
    path = name
    while steps:
        step = steps.pop(0)
        if step == "$defs" and steps:
            path = steps.pop(0).partition(".")[0]
        elif step == "properties" and steps:
            path += f".{steps.pop(0)}"
        elif step in ("items", "additionalProperties"):
            path += "[]"
        elif step == "prefixItems" and steps:
            path += f"[{steps.pop(0)}]"
    return path


def _name(kind: Any) -> str:
    """A type as users write it, without its annotations."""
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if isinstance(kind, type) and not get_args(kind):
        return kind.__name__
    written = str(kind).replace("typing.", "")
    return written if "Annotated[" not in written else str(getattr(get_origin(kind), "__name__", "type"))
