"""Numbers: int, float, Decimal, Fraction, complex and bool."""

from __future__ import annotations

import functools
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

from pydantic_core import SchemaValidator, ValidationError

from draftline.structured.json_schema.shapes.numbers import NumberSet
from draftline.structured.types.core.place import CoreSchema, Fragment, Place, Reader, text, text_or_refusal
from draftline.structured.types.texts.decimals import decimal_text, exact
from draftline.structured.types.texts.trees import tree

MAX_INT_DIGITS: Final = 40
"""The most digits of an int without closer bounds. pydantic reads up to 4,300."""

MAX_INEXACT_MULTIPLE: Final = 10**6
"""The largest float that is a multiple of a fraction such as 0.01: pydantic allows a remainder of 1e-9, for rounding."""

_MAX_DENOMINATOR: Final = 2**20
_INT: Final = 10**MAX_INT_DIGITS - 1
_MULTIPLE: Final = 2**53 - 1
"""The largest multiple that grammars count."""

_KEYWORDS: Final = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
_FRACTION: Final = "-?(?:0|[1-9][0-9]{0,17})(?:/[1-9][0-9]{0,17})?"
_FLOAT: Final = "(?:0|[1-9][0-9]{0,15})(?:\\.[0-9]{1,16})?"
_COMPLEX: Final = f"-?{_FLOAT}[+-]{_FLOAT}j"


def read_int(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """Integers, as digits alone."""
    largest = _INT if schema.get("multiple_of") is None else _MULTIPLE
    fragment: Fragment = {"type": "integer", "minimum": -largest, "maximum": largest}
    return _bounded(reader, schema, place, fragment)


def read_float(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """Finite 64-bit floats."""
    fragment: Fragment = {"type": "number", "format": "double"}
    if (step := schema.get("multiple_of")) is not None:
        largest = MAX_INEXACT_MULTIPLE if Fraction(step).denominator > _MAX_DENOMINATOR else _MULTIPLE
        fragment |= {"minimum": -largest, "maximum": largest}
        if not _divides_negatives(step):
            fragment["minimum"] = 0
    return _bounded(reader, schema, place, fragment)


@functools.cache
def _divides_negatives(step: float) -> bool:
    """Whether pydantic accepts negative multiples: 2.10 rejects all of them."""
    validator = SchemaValidator({"type": "float", "multiple_of": step})
    try:
        for multiple in range(1, 1000):
            validator.validate_python(-multiple * step)
    except ValidationError:
        return False
    return True


def read_bool(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """True and false."""
    del reader, schema, place
    return {"type": "boolean"}


def read_decimal(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """Decimals as strings, as pydantic writes them."""
    limits = schema.get("max_digits"), schema.get("decimal_places")
    return text_or_refusal(reader, place, "Decimal", lambda: decimal_text(number_set(schema), *limits))


def read_fraction(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """Fractions as strings: 3/4."""
    if any(schema.get(bound) is not None for bound in (*_KEYWORDS, "multiple_of")):
        return reader.refuse(place, "Fraction", "bounds of fractions are not a regular language")
    return text(tree(_FRACTION))


def read_complex(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """Complex numbers as strings: 1.5-2j."""
    del reader, schema, place
    return text(tree(_COMPLEX))


def int_key(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """Integers as names of members."""
    return text_or_refusal(reader, place, "int", lambda: decimal_text(number_set(schema), 18, 0))


def float_key(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """Floats as names of members: decimals of few digits."""
    return text_or_refusal(reader, place, "float", lambda: decimal_text(number_set(schema), 12, 6))


def number_set(schema: CoreSchema) -> NumberSet:
    """The numbers within the bounds of a schema. Raises (OverflowError, ValueError) for infinity and NaN."""
    lows = [(one, key == "gt") for key in ("ge", "gt") for one in _values(_bound(schema, key))]
    highs = [(one, key != "lt") for key in ("le", "lt") for one in _values(_bound(schema, key))]
    low, low_open = max(lows, default=(None, False))
    high, high_closed = min(highs, default=(None, True))
    step = schema.get("multiple_of")
    return NumberSet(low, low_open, high, not high_closed, None if step is None else Fraction(str(step)))


def _bound(schema: CoreSchema, key: str) -> Any:
    """A bound, which may be a text; None for an infinite one that all numbers of JSON are within."""
    bound = schema.get(key)
    if isinstance(bound, str):
        bound = Decimal(bound)
    endless = -math.inf if key in ("ge", "gt") else math.inf
    return None if bound == endless else bound


def _values(bound: Any) -> list[Fraction]:
    """A bound as an exact number; for a float, that of its digits as well, so that the tighter one holds."""
    if bound is None:
        return []
    return [exact(bound), Fraction(repr(bound))] if isinstance(bound, float) else [exact(bound)]


def _bounded(reader: Reader, schema: CoreSchema, place: Place, fragment: Fragment) -> Fragment:
    try:
        for key, keyword in _KEYWORDS.items():
            if (bound := _bound(schema, key)) is not None:
                fragment[keyword] = _tighter(keyword, fragment.get(keyword), _written(bound))
        if (step := schema.get("multiple_of")) is not None:
            fragment["multipleOf"] = _written(step)
    except (OverflowError, ValueError) as error:
        return reader.refuse(place, "bound", str(error))
    return fragment


def _tighter(keyword: str, known: Any, bound: Any) -> Any:
    """The tighter one of two values of a keyword."""
    if known is None:
        return bound
    return max(known, bound) if keyword in ("minimum", "exclusiveMinimum") else min(known, bound)


def _written(bound: Any) -> Any:
    """A bound as JSON writes it. Raises (OverflowError, ValueError) for infinity and NaN."""
    if isinstance(bound, int):
        return int(bound)
    exact(bound)
    if isinstance(bound, Decimal):
        return int(bound) if bound == bound.to_integral_value() else float(bound)
    return float(bound)
