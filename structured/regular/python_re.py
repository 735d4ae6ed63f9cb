"""Patterns of Python's re module as syntax trees over code points, read with re's own parser.

Every text in which a search for the tree finds a match is one in which re finds a match. ``$`` is the end of the text alone.
Word boundaries are between characters of ASCII's words and others in ASCII. Backreferences, and lookaheads and lookbehinds
within one another, but for what `ecma` translates, are not translated: `UntranslatablePatternError` names them. The flag ``m``
makes ``^`` a lookbehind and ``$`` a lookahead.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from re import _constants as ops  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any, Final

from draftline.structured.regular import charset, unicode
from draftline.structured.regular.charset import CharSet
from draftline.structured.regular.ecma import sighted
from draftline.structured.regular.pattern_reader import UntranslatablePatternError
from draftline.structured.regular.syntax import (
    ANY_CHAR,
    LINE_END,
    LINE_START,
    NEVER,
    Anchor,
    Chars,
    Lookahead,
    Lookbehind,
    Node,
    alt,
    literal,
    no_word_boundary,
    optional,
    repeat,
    seq,
    word_boundary,
)
from draftline.structured.regular.unicode import Class, exactly

_UNTRANSLATABLE: Final = {
    "GROUPREF": "a backreference",
    "GROUPREF_EXISTS": "a conditional group",
    "ATOMIC_GROUP": "an atomic group",
    "POSSESSIVE_REPEAT": "a possessive repetition",
}


def parse(pattern: str, flags: int = 0) -> Node:
    """The syntax tree of a pattern that re accepts, with its anchors.

    Raises:
        UntranslatablePatternError: it uses a construct without a translation.
    """
    parsed = _parser.parse(pattern, flags)
    return sighted(_sequence(parsed, _Reading().under(parsed.state.flags)))


@dataclass(frozen=True, slots=True)
class _Reading:
    """How a part of a pattern is read: what it surely matches or, within a negative lookahead, what it may match."""

    dot_all: bool = False
    ignore_case: bool = False
    multiline: bool = False
    ascii: bool = False
    surely: bool = True

    def under(self, added: int, removed: int = 0) -> _Reading:
        """The reading of a part whose flags differ."""

        def holds(before: bool, flag: int, unless: int) -> bool:
            return bool(added & flag) or (before and not unless & flag)

        return replace(
            self,
            dot_all=holds(self.dot_all, re.DOTALL, removed),
            ignore_case=holds(self.ignore_case, re.IGNORECASE, removed),
            multiline=holds(self.multiline, re.MULTILINE, removed),
            # The flag u takes its place.
            ascii=bool(added & re.ASCII) or (self.ascii and not added & re.UNICODE),
        )

    def cased(self, characters: CharSet) -> Class:
        """The characters that a pattern writes out, as the flag ``i`` reads them."""
        one = exactly(characters)
        if not self.ignore_case:
            return one
        return exactly(unicode.in_any_case(one).surely) if self.ascii else unicode.in_any_case(one)

    def category(self, letter: str) -> Class:
        r"""The characters of ``\d``, ``\s`` or ``\w``, or of those in capitals all others."""
        known = exactly(_ASCII_CATEGORIES[letter.lower()]) if self.ascii else unicode.named(letter.lower())
        return known if letter.islower() else known.complement()

    def characters(self, one: Class) -> Node:
        return Chars(one.surely if self.surely else one.maybe)

    def begin(self) -> Node:
        return LINE_START if self.multiline else Anchor(end=False)

    def end(self) -> Node:
        if self.multiline:
            return LINE_END
        # re's "$" also stands before a newline at the end.
        return (
            Anchor(end=True) if self.surely else Lookahead(seq(optional(literal("\n")), Anchor(end=True)), inside=True)
        )

    def words(self) -> tuple[CharSet, CharSet]:
        """The sets of characters of a `word_boundary`."""
        sets = (charset.WORD, charset.WORD if self.ascii else charset.MAYBE_WORD)
        return sets if self.surely else (sets[1], sets[0])

    def no_boundary(self) -> Node:
        inner = no_word_boundary(*self.words())
        # Most versions of re find no "\\B" in the empty text.
        some = alt([Lookbehind(ANY_CHAR, inside=True), Lookahead(ANY_CHAR, inside=True)])
        return seq(some, inner) if self.surely else inner


def _sequence(items: Iterable[tuple[Any, Any]], reading: _Reading) -> Node:
    return seq(*(_item(op, argument, reading) for op, argument in items))


def _item(op: Any, argument: Any, reading: _Reading) -> Node:
    if op is ops.LITERAL:
        return reading.characters(reading.cased(charset.of(chr(argument))))
    if op is ops.NOT_LITERAL:
        return reading.characters(reading.cased(charset.of(chr(argument))).complement())
    if op is ops.ANY:
        return Chars(charset.ALL if reading.dot_all else charset.complement(charset.of("\n")))
    if op is ops.IN:
        return reading.characters(_class(argument, reading))
    if op is ops.BRANCH:
        return alt(_sequence(option, reading) for option in argument[1])
    if op is ops.SUBPATTERN:
        _, added, removed, inner = argument
        return _sequence(inner, reading.under(added, removed))
    if op in (ops.MAX_REPEAT, ops.MIN_REPEAT):
        low, high, inner = argument
        repeated = _sequence(inner, reading)
        if isinstance(repeated, Anchor):
            raise UntranslatablePatternError("a repeated anchor")
        return repeat(repeated, low, None if high is ops.MAXREPEAT else high)
    if op is ops.AT:
        if argument is ops.AT_BEGINNING:
            return reading.begin()
        if argument is ops.AT_BEGINNING_STRING:
            return Anchor(end=False)
        if argument is ops.AT_END:
            return reading.end()
        if argument is ops.AT_END_STRING:
            return Anchor(end=True)
        return word_boundary(*reading.words()) if argument is ops.AT_BOUNDARY else reading.no_boundary()
    if op in (ops.ASSERT, ops.ASSERT_NOT):
        inside = op is ops.ASSERT
        around = reading if inside else replace(reading, surely=not reading.surely)
        looked = _sequence(argument[1], around)
        return Lookbehind(looked, inside) if argument[0] < 0 else Lookahead(looked, inside)
    if op is ops.FAILURE:  # an empty negative lookahead
        return NEVER
    raise UntranslatablePatternError(_UNTRANSLATABLE.get(str(op), f"the construct {str(op).lower()}"))


_CATEGORIES: Final = {
    ops.CATEGORY_DIGIT: "d",
    ops.CATEGORY_NOT_DIGIT: "D",
    ops.CATEGORY_SPACE: "s",
    ops.CATEGORY_NOT_SPACE: "S",
    ops.CATEGORY_WORD: "w",
    ops.CATEGORY_NOT_WORD: "W",
}


_ASCII_CATEGORIES: Final = {"d": charset.DIGIT, "s": charset.of(" \t\n\r\f\v"), "w": charset.WORD}


def _class(items: list[tuple[Any, Any]], reading: _Reading) -> Class:
    negated = bool(items) and items[0][0] is ops.NEGATE
    members = [_member(op, argument, reading) for op, argument in items[int(negated) :]]
    united = unicode.union(members)
    return united.complement() if negated else united


def _member(op: Any, argument: Any, reading: _Reading) -> Class:
    if op is ops.LITERAL:
        return reading.cased(charset.of(chr(argument)))
    if op is ops.RANGE:
        return reading.cased(charset.charset([argument]))
    return reading.category(_CATEGORIES[argument])
