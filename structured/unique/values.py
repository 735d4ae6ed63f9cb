"""JSON values as readers compare them, and whether an unfinished text may become a given one.

``2`` equals ``2.0``, and members have no order. Readers round fractions to 64-bit floats, so equal floats are equal values.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Hashable, Iterator, Mapping
from fractions import Fraction
from typing import Any, Final, NamedTuple

Value = Hashable
"""A value: a string, a Fraction, bytes for ``null``, ``true`` and ``false``, a tuple for an array, or `Object`."""


class Object(NamedTuple):
    """An object: its members without order."""

    members: frozenset[tuple[str, Value]]


_TYPES: Final[Mapping[type, str]] = {str: "string", Fraction: "number", tuple: "array", Object: "object"}


def type_of(value: Value) -> str:
    """The type of a value: "null", "boolean", "number", "string", "array" or "object"."""
    return _TYPES.get(type(value)) or ("null" if value == b"null" else "boolean")


_WHITE: Final = b" \t\n\r"
_NUMBER: Final = re.compile(rb"[-+0-9.eE]*")
_LITERALS: Final[Mapping[Any, bytes]] = {None: b"null", True: b"true", False: b"false"}


def readings_of(text: bytes) -> frozenset[Value]:
    """What readers make of a text: two values where a number like ``6e91`` is another integer once it is rounded.

    Empty if it is no value, or half a character.
    """
    disagreed = False

    def exact(number: str) -> Fraction:
        nonlocal disagreed
        whole, rounded = Fraction(number), Fraction(float(number))
        if whole.denominator > 1 or whole == rounded:
            return rounded
        disagreed = True
        return whole

    try:
        found = {_value(json.loads(text, parse_float=exact, parse_int=Fraction))}
        if disagreed:
            found.add(_value(json.loads(text, parse_float=_rounded, parse_int=Fraction)))
    except (ValueError, OverflowError):
        return frozenset()
    return frozenset(found)


def value_of(text: bytes) -> Value | None:
    """The value of a text; None if readers disagree about it, or if there is none."""
    readings = readings_of(text)
    return next(iter(readings)) if len(readings) == 1 else None


def _rounded(text: str) -> Fraction:
    return Fraction(float(text))


def _value(parsed: Any) -> Value:
    if isinstance(parsed, list):
        return tuple(map(_value, parsed))
    if isinstance(parsed, dict):
        return Object(frozenset((name, _value(member)) for name, member in parsed.items()))
    if isinstance(parsed, str):
        parsed.encode()  # a lone surrogate is half a character
    return parsed if isinstance(parsed, str | Fraction) else _LITERALS[parsed]


@functools.lru_cache(maxsize=4096)
def string_of(text: bytes) -> str | None:
    """The string that raw bytes between quotes stand for; None if they end within a character or an escape."""
    try:
        value: str = json.loads(b'"' + text + b'"')
        value.encode()  # a lone surrogate is half a character
    except ValueError:
        return None
    return value


def spelled_alike(text: bytes) -> bytes:
    """The beginning of a JSON text, with finished numbers in one spelling and without the white space that matters to none.

    Texts that become equal have equal values, as far as they are finished, and may go on alike.
    """
    return _PIECES.sub(_spelled, text)


def _spelled(piece: re.Match[bytes]) -> bytes:
    text = piece[0]
    if text[0] in _WHITE:
        return b" " if piece.end() == len(piece.string) else b""  # it ends a number
    value = None if text[:1] == b'"' else value_of(text)
    return text if value is None else str(value).encode()


_PIECES: Final = re.compile(rb'"(?:[^"\\]|\\.)*"?|[ \t\n\r]+|[-0-9][-+0-9.eE]*(?=[\],} \t\n\r])', re.DOTALL)


def may_become(text: bytes, value: Value) -> bool:
    """Whether a text that begins with ``text`` may be one of ``value``. True may be wrong for numbers."""
    return _match(text, 0, value) is not None


def endings(begun: str, value: Value) -> Iterator[bytes]:
    """The byte that may follow ``begun``, the beginning of a string, for each string in a value that begins so."""
    if isinstance(value, str):
        if value.startswith(begun):
            rest = value[len(begun) :][:1]
            yield rest.encode()[:1] if rest else b'"'
    elif isinstance(value, Object):  # also a tuple
        for name, member in value.members:
            yield from endings(begun, name)
            yield from endings(begun, member)
    elif isinstance(value, tuple):
        for item in value:
            yield from endings(begun, item)


def _skip(text: bytes, at: int) -> int:
    while at < len(text) and text[at] in _WHITE:
        at += 1
    return at


def _match(text: bytes, at: int, value: Value) -> int | None:
    """The end of a text of the value from an index on, or of the whole text within it; None if it has another value."""
    at = _skip(text, at)
    if at == len(text):
        return at
    if isinstance(value, str):
        return _match_string(text, at, value)
    if isinstance(value, Object):
        return _match_object(text, at, value)
    if isinstance(value, tuple):
        return _match_array(text, at, value)
    if isinstance(value, bytes):
        word = text[at : at + len(value)]
        return at + len(word) if value.startswith(word) else None
    assert isinstance(value, Fraction)
    found = _NUMBER.match(text, at)
    assert found is not None
    end = found.end()
    if end == at:
        return None
    if end == len(text):
        return end if _number_may_become(found[0], value) else None
    return end if value in readings_of(found[0]) else None


def _string_end(text: bytes, at: int) -> int:
    """The index of the quote that ends the string which begins before ``at``; -1 if it is open."""
    while at < len(text):
        if text[at] == ord('"'):
            return at
        at += 2 if text[at] == ord("\\") else 1
    return -1


def beginning_of(text: bytes) -> str:
    """The whole characters of an unfinished string, from its raw bytes."""
    for cut in range(12):  # half a pair of escaped surrogates
        value = string_of(text[: len(text) - cut])
        if value is not None:
            return value
    return ""


def _match_string(text: bytes, at: int, value: str) -> int | None:
    if text[at] != ord('"'):
        return None
    end = _string_end(text, at + 1)
    if end < 0:
        return len(text) if value.startswith(beginning_of(text[at + 1 :])) else None
    return end + 1 if string_of(text[at + 1 : end]) == value else None


def _match_array(text: bytes, at: int, value: tuple[Value, ...]) -> int | None:
    if text[at] != ord("["):
        return None
    at = _skip(text, at + 1)
    for index, item in enumerate(value):
        if index:
            if at == len(text):
                return at
            if text[at] != ord(","):
                return None
            at += 1
        found = _match(text, at, item)
        if found is None:
            return None
        at = _skip(text, found)
    if at == len(text):
        return at
    return at + 1 if text[at] == ord("]") else None


def _match_object(text: bytes, at: int, value: Object) -> int | None:
    if text[at] != ord("{"):
        return None
    left = dict(value.members)
    at = _skip(text, at + 1)
    first = True
    while at < len(text):
        if text[at] == ord("}"):
            return None if left else at + 1
        if not first:
            if text[at] != ord(","):
                return None
            at = _skip(text, at + 1)
            if at == len(text):
                return at if left else None
        first = False
        if text[at] != ord('"'):
            return None
        end = _string_end(text, at + 1)
        if end < 0:
            begun = beginning_of(text[at + 1 :])
            return len(text) if any(name.startswith(begun) for name in left) else None
        name = string_of(text[at + 1 : end])
        if name is None or name not in left:
            return None
        at = _skip(text, end + 1)
        if at == len(text):
            return at
        found = _match(text, at + 1, left.pop(name))
        if found is None:
            return None
        at = _skip(text, found)
    return at


def _number_may_become(token: bytes, value: Fraction) -> bool:
    if value and token.startswith(b"-") != (value < 0):
        return False
    mantissa, exponential, _ = token.lower().partition(b"e")
    digits = re.sub(rb"[^0-9]", b"", mantissa)
    if not value:
        return not digits.strip(b"0") or exponential != b"" or len(digits) > 300  # readers round tiny numbers to zero
    if not digits.strip(b"0"):
        return True
    # Wherever the point is, the first digits have to be the value's, or lead to them by rounding.
    length = min(len(digits := digits.lstrip(b"0")), _LEADING)
    unit = int(f"1{'0' * (_LEADING - length)}")
    low, size = int(digits[:length]) * unit, _leading_digits(abs(value))
    high = low + unit
    return (
        low - _ROUNDED <= size <= high + _ROUNDED
        or abs(10 * size - high) <= 10 * _ROUNDED  # 99… is next to 10…
        or abs(size - 10 * low) <= _ROUNDED
    )


_LEADING: Final = 16
_ROUNDED: Final = 4
"""By how much rounding to a 64-bit float changes a number of so many digits, and a little more."""


@functools.lru_cache(maxsize=1 << 15)
def _leading_digits(size: Fraction) -> int:
    """The first digits of a positive number."""
    shift = _LEADING + len(str(size.denominator))
    return int(str(size.numerator * 10**shift // size.denominator)[:_LEADING])
