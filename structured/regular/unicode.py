r"""The Unicode classes ``\d``, ``\s`` and ``\w`` of regular expressions that are not ECMA-262's, with a margin.

The tables of another library may be of another version of Unicode. So a class has two forms: characters that are surely
in it, and characters that may be in it. Patterns that mean "in the class" use the first, patterns that mean "not in the
class" the complement of the second.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from draftline.structured.regular import charset, properties
from draftline.structured.regular.categories import by_category, category
from draftline.structured.regular.charset import CharSet
from draftline.structured.regular.properties import disputed, emoji_property, fixed_property, script


@dataclass(frozen=True, slots=True)
class Class:
    """A class of characters: those surely in it, and those that may be in it."""

    surely: CharSet
    maybe: CharSet

    def complement(self) -> Class:
        """The class of all other characters."""
        return Class(charset.complement(self.maybe), charset.complement(self.surely))

    def meet(self, other: Class) -> Class:
        """The class of the characters of both."""
        return Class(charset.intersection(self.surely, other.surely), charset.intersection(self.maybe, other.maybe))


def union(classes: Collection[Class]) -> Class:
    """The class of the characters of all classes."""
    return Class(charset.union(*(one.surely for one in classes)), charset.union(*(one.maybe for one in classes)))


def exactly(characters: CharSet) -> Class:
    """A class that does not depend on the version of Unicode."""
    return Class(characters, characters)


def in_any_case(one: Class) -> Class:
    """The class under the flag ``i``: letters of ASCII in both cases; of other letters, any case may be in it."""
    surely = charset.union(one.surely, _other_case(one.surely))
    maybe = charset.union(one.maybe, _other_case(one.maybe))
    for letters in _CASES_BEYOND_ASCII:
        if charset.intersection(one.maybe, letters):
            maybe = charset.union(maybe, letters)
    if charset.difference(one.maybe, _ASCII):
        maybe = charset.union(maybe, charset.complement(_ASCII))
    return Class(surely, maybe)


def _other_case(characters: CharSet) -> CharSet:
    letters = charset.intersection(characters, _ASCII_LETTERS)
    return charset.charset((low ^ 0x20, high ^ 0x20) for low, high in letters)


_ASCII: Final = charset.charset([(0, 0x7F)])
_ASCII_LETTERS: Final = charset.charset([(0x41, 0x5A), (0x61, 0x7A)])
_CASES_BEYOND_ASCII: Final = [charset.of(letters) for letters in ("sS\u017f", "kK\u212a", "iI\u0130\u0131")]
"""ASCII's letters that are cases of others: of the long s, the sign of kelvin, and the letters i of Turkish."""

# White_Space of Unicode, and what Python's re adds: the information separators.
WHITE_SPACE: Final = charset.union(
    charset.charset([(0x09, 0x0D), (0x2000, 0x200A), (0x2028, 0x2029)]),
    charset.of(" \x85\u00a0\u1680\u202f\u205f\u3000"),
)
_SEPARATORS: Final = charset.charset([(0x1C, 0x1F)])
_CIRCLED: Final = charset.charset(
    [(0x24B6, 0x24E9), (0x1F130, 0x1F149), (0x1F150, 0x1F169), (0x1F170, 0x1F189), (0x200C, 0x200D)]
)


_SCRIPTS: Final = charset.charset(
    [
        (0x0, 0x52F),  # Latin, Greek, Cyrillic
        (0x5D0, 0x5EA),  # Hebrew
        (0x620, 0x64A),  # Arabic
        (0x904, 0x939),  # Devanagari
        (0xE01, 0xE30),  # Thai
        (0x10D0, 0x10FA),  # Georgian
        (0x1E00, 0x1EFF),  # Latin, for Vietnamese and others
        (0x3041, 0x3096),  # Hiragana
        (0x30A1, 0x30FA),  # Katakana
        (0x4E00, 0x9FFF),  # Chinese
        (0xAC00, 0xD7A3),  # Hangul
    ]
)
r"""The scripts whose letters ``\w`` writes."""


@functools.cache
def category_of(name: str) -> Class | None:
    """The characters of a general category, by its long or its short name; None for an unknown one."""
    inside = category(name)
    return None if inside is None else Class(inside, charset.union(inside, by_category()["Cn"]))


@functools.cache
def script_of(name: str) -> Class | None:
    """The characters of a script, by its long or its short name; None for an unknown one."""
    inside = script(name)
    return None if inside is None else _with_margin(inside, charset.NONE)


@functools.cache
def property_of(name: str) -> Class | None:
    """The characters that have a property, by its long or its short name; None for an unknown one."""
    if (fixed := fixed_property(name)) is not None:
        return exactly(fixed)
    if (inside := emoji_property(name)) is not None:
        return _with_margin(inside, disputed(name))
    if name not in _DERIVED:
        return None
    tables = by_category()
    inside, uncertain = (charset.union(*(tables[one] for one in names)) for names in _DERIVED[name])
    return _with_margin(inside, uncertain)


def _with_margin(inside: CharSet, uncertain: CharSet) -> Class:
    """A class of which some characters are not sure. Unassigned ones never are: the next version of Unicode assigns some."""
    uncertain = charset.union(uncertain, by_category()["Cn"])
    return Class(charset.difference(inside, uncertain), charset.union(inside, uncertain))


_ALPHABETIC: Final = (("Lu", "Ll", "Lt", "Lm", "Lo", "Nl"), ("Mn", "Mc", "So"))
_LOWERCASE: Final = (("Ll",), ("Lo", "Lm", "Nl", "So", "Mn"))
_UPPERCASE: Final = (("Lu",), ("Nl", "So"))
_DERIVED: Final = {
    "Alphabetic": _ALPHABETIC,
    "Alpha": _ALPHABETIC,
    "Lowercase": _LOWERCASE,
    "Lower": _LOWERCASE,
    "Uppercase": _UPPERCASE,
    "Upper": _UPPERCASE,
}
"""Properties of which all characters of some categories surely have it, and some of others."""
PROPERTIES: Final = (*properties.PROPERTIES, *_DERIVED)
"""The names of the properties of `property_of`."""


@functools.cache
def named(letter: str) -> Class:
    r"""The class of ``\d``, ``\s`` or ``\w``. Sure are ASCII's digits, and letters of the most common scripts."""
    if letter == "s":
        return Class(WHITE_SPACE, charset.union(WHITE_SPACE, _SEPARATORS))
    tables = by_category()
    if letter == "d":
        return Class(charset.DIGIT, charset.union(tables["Nd"], tables["Cn"]))
    words = charset.union(
        *(tables[name] for name in ("Lu", "Ll", "Lt", "Lm", "Lo", "Nl", "Nd", "Pc", "Mn", "Mc", "Me"))
    )
    # All letters are 700 ranges, whose automaton has 400 states for each \w.
    letters = charset.union(*(tables[name] for name in ("Lu", "Ll", "Lt", "Lm", "Lo")))
    surely = charset.union(charset.WORD, charset.intersection(letters, _SCRIPTS))
    return Class(surely, charset.union(words, _CIRCLED, tables["No"], tables["Cn"]))
