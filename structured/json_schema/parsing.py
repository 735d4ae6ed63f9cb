"""The JSON of a schema: its text, within limits, and JSON pointers into it."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any, Final

from draftline.structured.errors import InvalidConstraintError
from draftline.structured.json_schema.limits import SchemaLimits
from draftline.structured.members import RepeatedMemberError, unique_members

Json = Any
"""A JSON value as Python's json reads it, but numbers with a fraction or an exponent are Decimals."""

MAX_DIGITS: Final = 400
"""The most digits of a number in a schema, written out without exponent."""


def parse(text: str, limits: SchemaLimits) -> Json:
    """Parse the text of a schema.

    Raises:
        InvalidConstraintError: it is not JSON, or over a limit.
    """
    if len(text.encode("utf-8", "surrogatepass")) > limits.schema_bytes:
        raise InvalidConstraintError(f"the schema is larger than {limits.schema_bytes} bytes")
    deepest = _depth(text)
    if deepest > limits.depth:
        raise InvalidConstraintError(f"the schema nests {deepest} deep; at most {limits.depth} is allowed")

    def refuse(constant: str) -> Json:
        raise InvalidConstraintError(f"the schema contains {constant}, which is not JSON")

    try:
        value = json.loads(
            text, parse_int=_integer, parse_float=_decimal, parse_constant=refuse, object_pairs_hook=unique_members
        )
    except RepeatedMemberError as error:
        raise InvalidConstraintError(f"the schema {error}") from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise InvalidConstraintError(f"the schema is not JSON: {error}") from None
    _check_numbers(value, "")
    return value


# Sums and comparisons of numbers write out all their digits, so numbers are checked before anything else is done with
# them. Text that is too long to be looked at becomes this mark, because the parser does not tell where it is.
_TOO_LONG: Final = Decimal("Infinity")
_LONGEST_TEXT: Final = 2 * MAX_DIGITS
_LONGEST_EXPONENT: Final = 8


def _integer(text: str) -> Json:
    return int(text) if len(text) <= _LONGEST_TEXT else _TOO_LONG


def _decimal(text: str) -> Decimal:
    _, _, exponent = text.lower().partition("e")
    return Decimal(text) if len(text) <= _LONGEST_TEXT and len(exponent) <= _LONGEST_EXPONENT else _TOO_LONG


def _check_numbers(value: Json, pointer: str) -> None:
    """Refuse numbers that have more than ``MAX_DIGITS`` digits when they are written out."""
    if isinstance(value, dict):
        for name, member in value.items():
            _check_numbers(member, f"{pointer}/{escape(name)}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_numbers(item, f"{pointer}/{index}")
    elif isinstance(value, int | Decimal) and not isinstance(value, bool):
        number = Decimal(value)
        if not number.is_finite() or _digits(number) > MAX_DIGITS:
            raise InvalidConstraintError(f"{pointer or '(root)'}: a number of more than {MAX_DIGITS} digits")


def _digits(number: Decimal) -> int:
    """The digits of a finite number before and behind its point."""
    _, _, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    return max(number.adjusted(), 0) + 1 + max(-exponent, 0)


def _depth(text: str) -> int:
    """The nesting depth of brackets outside strings."""
    depth = deepest = 0
    for bracket in re.sub(r'"(?:[^"\\]|\\.)*"', "", text, flags=re.DOTALL):
        if bracket in "{[":
            depth += 1
            deepest = max(deepest, depth)
        elif bracket in "}]":
            depth -= 1
    return deepest


def escape(name: str) -> str:
    """Escape a member name for use in a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")
