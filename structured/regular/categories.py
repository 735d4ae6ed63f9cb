"""General categories of characters, by the names that Unicode gives them, from the tables of Python's ``unicodedata``."""

from __future__ import annotations

import functools
import sys
import unicodedata
from typing import Final

from draftline.structured.regular import charset
from draftline.structured.regular.charset import CharSet

_NAMES: Final = {
    "Letter": "L",
    "Cased_Letter": "LC",
    "Uppercase_Letter": "Lu",
    "Lowercase_Letter": "Ll",
    "Titlecase_Letter": "Lt",
    "Modifier_Letter": "Lm",
    "Other_Letter": "Lo",
    "Mark": "M",
    "Combining_Mark": "M",
    "Nonspacing_Mark": "Mn",
    "Spacing_Mark": "Mc",
    "Enclosing_Mark": "Me",
    "Number": "N",
    "Decimal_Number": "Nd",
    "digit": "Nd",
    "Letter_Number": "Nl",
    "Other_Number": "No",
    "Punctuation": "P",
    "punct": "P",
    "Connector_Punctuation": "Pc",
    "Dash_Punctuation": "Pd",
    "Open_Punctuation": "Ps",
    "Close_Punctuation": "Pe",
    "Initial_Punctuation": "Pi",
    "Final_Punctuation": "Pf",
    "Other_Punctuation": "Po",
    "Symbol": "S",
    "Math_Symbol": "Sm",
    "Currency_Symbol": "Sc",
    "Modifier_Symbol": "Sk",
    "Other_Symbol": "So",
    "Separator": "Z",
    "Space_Separator": "Zs",
    "Line_Separator": "Zl",
    "Paragraph_Separator": "Zp",
    "Other": "C",
    "Control": "Cc",
    "cntrl": "Cc",
    "Format": "Cf",
    "Private_Use": "Co",
}
_SHORT: Final = frozenset(_NAMES.values())
_UNIONS: Final = {"LC": ("Lu", "Ll", "Lt")}

CATEGORIES: Final = (*_NAMES, *_SHORT)
"""The names of categories, long and short. Those of unassigned characters and surrogates are not among them: which
characters are unassigned depends on the version, and a text has no surrogates."""


def category(name: str) -> CharSet | None:
    """The assigned characters of a category, by its long or its short name; None for another name."""
    short = _NAMES.get(name, name)
    if short not in _SHORT:
        return None
    begins = _UNIONS.get(short, short)
    return charset.union(
        *(members for one, members in by_category().items() if one.startswith(begins) and one not in ("Cn", "Cs"))
    )


@functools.cache
def by_category() -> dict[str, CharSet]:
    """The characters of each category of two letters. Cn has the unassigned ones, Cs the surrogates."""
    ranges: dict[str, list[tuple[int, int]]] = {"Cn": []}
    start, current = 0, unicodedata.category("\0")
    for code in range(1, sys.maxunicode + 2):
        following = unicodedata.category(chr(code)) if code <= sys.maxunicode else ""
        if following != current:
            ranges.setdefault(current, []).append((start, code - 1))
            start, current = code, following
    return {name: charset.charset(members) for name, members in ranges.items()}
