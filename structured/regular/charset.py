"""Sets of Unicode code points as sorted, disjoint, inclusive ranges. Surrogates are never in a set."""

import functools
from collections.abc import Iterable

CharSet = tuple[tuple[int, int], ...]
"""Inclusive ranges of code points, sorted, with a gap between any two."""

_FIRST_SURROGATE, _LAST_SURROGATE, _LAST = 0xD800, 0xDFFF, 0x10FFFF

ALL: CharSet = ((0, _FIRST_SURROGATE - 1), (_LAST_SURROGATE + 1, _LAST))
NONE: CharSet = ()


def charset(ranges: Iterable[tuple[int, int]]) -> CharSet:
    """The set of all code points in any of ``ranges``, which may overlap and touch."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if low > high:
            continue
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    without: list[tuple[int, int]] = []
    for low, high in merged:
        if low < _FIRST_SURROGATE:
            without.append((low, min(high, _FIRST_SURROGATE - 1)))
        if high > _LAST_SURROGATE:
            without.append((max(low, _LAST_SURROGATE + 1), high))
    return tuple(without)


@functools.lru_cache(maxsize=4096)
def of(characters: str) -> CharSet:
    """The set of the characters of a string."""
    return charset((ord(character), ord(character)) for character in characters)


def union(*sets: CharSet) -> CharSet:
    """The union of sets."""
    return charset(pair for one in sets for pair in one)


def complement(one: CharSet) -> CharSet:
    """The set of all other characters."""
    gaps: list[tuple[int, int]] = []
    start = 0
    for low, high in one:
        gaps.append((start, low - 1))
        start = high + 1
    gaps.append((start, _LAST))
    return charset(gaps)


def intersection(one: CharSet, other: CharSet) -> CharSet:
    """The intersection of two sets."""
    common: list[tuple[int, int]] = []
    i = j = 0
    while i < len(one) and j < len(other):
        low, high = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if low <= high:
            common.append((low, high))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return tuple(common)


def difference(one: CharSet, other: CharSet) -> CharSet:
    """The first set without the second."""
    return intersection(one, complement(other))


def single(one: CharSet) -> int | None:
    """The code point of the only character of a set; None if it has none or several."""
    return one[0][0] if len(one) == 1 and one[0][0] == one[0][1] else None


DIGIT = of("0123456789")
WORD = union(charset([(0x30, 0x39), (0x41, 0x5A), (0x61, 0x7A)]), of("_"))
MAYBE_WORD = union(WORD, charset([(0x80, 0x10FFFF)]))
"""``WORD``, and what may be in it beyond ASCII: that depends on the dialect and on the version of Unicode."""
SPACE = union(
    charset([(0x09, 0x0D), (0x2000, 0x200A), (0x2028, 0x2029)]),
    of(" \u00a0\u1680\u202f\u205f\u3000\ufeff"),
)
LINE_END = of("\n\r\u2028\u2029")
"""The classes \\d, \\w and \\s of ECMA-262, and the characters that its "." does not match."""
