r"""Patterns of Rust's regex crate, the dialect of pydantic's ``pattern``, as syntax trees over code points.

Every text in which a search for the tree finds a match is one in which the crate finds a match. The classes ``\d``, ``\w``
and ``\s`` are Unicode's there; the tree has ASCII's digits alone, and word boundaries only between characters of ASCII's words
and others in ASCII. The flag ``m`` makes ``^`` a lookbehind and ``$`` a lookahead. The boundaries of one side of a word, the flag
``R``, and Unicode properties other than general categories, those of `unicode.property_of` and scripts of `properties` are not
translated: `UntranslatablePatternError` names them.

The syntax is described at https://docs.rs/regex/latest/regex/#syntax.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from draftline.structured.regular import charset, unicode
from draftline.structured.regular.categories import CATEGORIES
from draftline.structured.regular.pattern_reader import MAX_NESTING, PatternReader, UntranslatablePatternError
from draftline.structured.regular.properties import SCRIPTS
from draftline.structured.regular.syntax import (
    LINE_END,
    LINE_START,
    Anchor,
    Chars,
    Node,
    alt,
    no_word_boundary,
    repeat,
    seq,
    word_boundary,
)
from draftline.structured.regular.unicode import Class, exactly

_BOUNDARY: Final = re.compile(r"[bB](?!\{[a-z])")
_COUNT: Final = re.compile(r"\{\s*(\d*)\s*(,\s*(\d*))?\s*\}")
_FLAGS: Final = re.compile(r"\?([imsUuxR]*)(?:-([imsUuxR]+))?([:)])")
_NAME: Final = re.compile(r"\?P?<[^>]+>")
_HEX: Final = re.compile(r"(?:[xuU]\{([0-9A-Fa-f]+)\}|x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8}))")
_PROPERTY: Final = re.compile(r"([pP])(?:\{(?:([^}]*?)(!=|[:=]))?([^}]*)\}|([A-Za-z]))")
_SPACE: Final = re.compile("(?:[\t-\r \x85\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]|#[^\n]*)+")
"""What the flag ``x`` goes past: White_Space of Unicode, and comments."""

_POSIX: Final = re.compile(r"\[:(\^?)([a-z]+):\]")
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_POSIX_CLASSES: Final = {
    "alnum": "09AZaz",
    "alpha": "AZaz",
    "ascii": "\0\x7f",
    "blank": "\t\t  ",
    "cntrl": "\0\x1f\x7f\x7f",
    "digit": "09",
    "graph": "!~",
    "lower": "az",
    "print": " ~",
    "punct": "!/:@[`{~",
    "space": "\t\r  ",
    "upper": "AZ",
    "word": "09AZaz__",
    "xdigit": "09AFaf",
}


def parse(pattern: str) -> Node:
    """The syntax tree of a pattern that the crate accepts, with its anchors.

    Raises:
        UntranslatablePatternError: it uses a construct without a translation.
    """
    parser = _Parser(pattern)
    tree = parser.alternatives(_Flags(), 0)
    if parser.position < len(pattern):
        raise UntranslatablePatternError("unmatched ')'")
    return tree


@dataclass(frozen=True, slots=True)
class _Flags:
    ignore_case: bool = False
    dot_all: bool = False
    multiline: bool = False
    verbose: bool = False


class _Parser(PatternReader):
    def alternatives(self, flags: _Flags, nesting: int) -> Node:
        if nesting > MAX_NESTING:
            raise UntranslatablePatternError("groups nest too deep")
        options: list[Node] = []
        parts: list[Node] = []
        while self._next(flags) not in ("", ")"):
            if self.eat("|"):
                options.append(seq(*parts))
                parts = []
                continue
            if self.text.startswith("(?", self.position):
                changed = self._inline_flags(flags)
                if changed is not None:
                    flags = changed
                    continue
            parts.append(self._quantified(self._atom(flags, nesting), flags))
        return alt([*options, seq(*parts)])

    def _next(self, flags: _Flags) -> str:
        """The next character that has a meaning; empty at the end."""
        if flags.verbose:
            self.match(_SPACE)
        return self.peek()

    def _inline_flags(self, flags: _Flags) -> _Flags | None:
        """The flags after ``(?i)``, which hold to the end of the group; None if something else stands here."""
        found = _FLAGS.match(self.text, self.position + 1)
        if found is None or found[3] != ")":
            return None
        self.position = found.end()
        return _changed(flags, found[1], found[2] or "")

    def _quantified(self, atom: Node, flags: _Flags) -> Node:
        while True:
            self._next(flags)
            in_braces = self.peek() == "{"
            counts = self.counts(_COUNT)
            if counts is None:
                return atom
            if in_braces:
                self._next(flags)  # behind a count alone, the ? of a lazy repetition may follow white space
            self.eat("?")
            if isinstance(atom, Anchor):
                raise UntranslatablePatternError("a repeated anchor")
            atom = repeat(atom, *counts)

    def _atom(self, flags: _Flags, nesting: int) -> Node:
        if self.eat("("):
            return self._group(flags, nesting)
        if self.eat("^"):
            return LINE_START if flags.multiline else Anchor(end=False)
        if self.eat("$"):
            return LINE_END if flags.multiline else Anchor(end=True)
        if self.eat("."):
            return Chars(charset.ALL if flags.dot_all else charset.complement(charset.of("\n")))
        if self.eat("["):
            return Chars(self._class(flags).surely)
        if self.eat("\\"):
            if self.eat("A"):
                return Anchor(end=False)
            if self.eat("z"):
                return Anchor(end=True)
            if (found := self.match(_BOUNDARY)) is not None:
                boundary = word_boundary if found[0] == "b" else no_word_boundary
                return boundary(charset.WORD, charset.MAYBE_WORD)
            return Chars(_cased(self._escape(), flags).surely)
        character = self.peek()
        if character == "?":  # the flag x allows white space between a group's bracket and its question mark
            raise UntranslatablePatternError("white space before the ? of a group")
        self.position += 1
        return Chars(_cased(exactly(charset.of(character)), flags).surely)

    def _group(self, flags: _Flags, nesting: int) -> Node:
        if (found := self.match(_FLAGS)) is not None:
            flags = _changed(flags, found[1], found[2] or "")
        else:
            self.match(_NAME)
        inner = self.alternatives(flags, nesting + 1)
        if not self.eat(")"):
            raise UntranslatablePatternError("a group without its ')'")
        return inner

    def _class(self, flags: _Flags) -> Class:
        """A class in brackets, from behind its opening bracket on."""
        self._next(flags)
        negated = self.eat("^")
        found: Class | None = None
        operator = "union"
        items: list[Class] = []
        # At the beginning, hyphens make no ranges and no differences. Without any, a bracket does not end the class.
        while self._next(flags) == "-":
            items.append(self._class_atom())
        if not items and self.peek() == "]":
            items.append(self._class_atom())

        def settle() -> Class:
            """What stands before here, with the operator before it."""
            new = _cased(unicode.union(items), flags)
            if found is None:
                return new
            if operator == "&&":
                return found.meet(new)
            if operator == "--":
                return found.meet(new.complement())
            return unicode.union([found.meet(new.complement()), new.meet(found.complement())])

        while self._next(flags) != "]":
            if self.peek() == "":
                raise UntranslatablePatternError("a character class without its ']'")
            following = self.text[self.position : self.position + 2]
            if following in ("&&", "--", "~~"):
                found, items, operator = settle(), [], following
                self.position += 2
            else:
                items.append(self._class_item(flags))
        self.position += 1
        whole = settle()
        return whole.complement() if negated else whole

    def _class_item(self, flags: _Flags) -> Class:
        if (found := self.match(_POSIX)) is not None:
            pairs = _POSIX_CLASSES[found[2]]
            ranges = zip(pairs[::2], pairs[1::2], strict=True)
            named = exactly(charset.charset((ord(low), ord(high)) for low, high in ranges))
            return named.complement() if found[1] else named
        if self.eat("["):
            return self._class(flags)
        low = self._class_atom()
        if self._next(flags) != "-":
            return low
        dash = self.position
        self.position += 1
        if self._next(flags) not in ("]", "-", ""):
            high = self._class_atom()
            return exactly(charset.charset([(low.surely[0][0], high.surely[0][0])]))
        self.position = dash
        return low

    def _class_atom(self) -> Class:
        if self.eat("\\"):
            return self._escape()
        character = self.peek()
        self.position += 1
        return exactly(charset.of(character))

    def _escape(self) -> Class:
        letter = self.peek()
        if letter.lower() in ("d", "w", "s"):
            self.position += 1
            known = unicode.named(letter.lower())
            return known if letter.islower() else known.complement()
        if letter in _CONTROLS:
            self.position += 1
            return exactly(charset.of(_CONTROLS[letter]))
        if (found := self.match(_HEX)) is not None:
            code = int(next(digits for digits in found.groups() if digits), 16)
            return exactly(charset.charset([(code, code)]))
        if (found := self.match(_PROPERTY)) is not None:
            negated = (found[1] == "P") != (found[3] == "!=")
            named = _property(found[2], found[4] or found[5] or "")
            if named is None:
                raise UntranslatablePatternError(f"the Unicode property {found[0][1:].strip('{}')}")
            return named.complement() if negated else named
        if letter in ("b", "B", "<", ">"):
            raise UntranslatablePatternError(f"the word boundary \\{letter}")
        if letter == "" or letter.isalnum():
            raise UntranslatablePatternError(f"the escape \\{letter}")
        self.position += 1
        return exactly(charset.of(letter))


def _changed(flags: _Flags, on: str, off: str) -> _Flags:
    if "R" in on:
        raise UntranslatablePatternError("the flag R")
    if "u" in off:
        raise UntranslatablePatternError("the flag -u")
    changed = {name: letter in on for letter, name in _FLAG_NAMES.items() if letter in on or letter in off}
    return replace(flags, **changed)


_FLAG_NAMES: Final = {"i": "ignore_case", "s": "dot_all", "m": "multiline", "x": "verbose"}


def _cased(one: Class, flags: _Flags) -> Class:
    return unicode.in_any_case(one) if flags.ignore_case else one


def _property(kind: str | None, name: str) -> Class | None:
    """The characters of a property, which may have another spelling than Unicode's; None for an unknown one."""
    known = _NAMES.get(_loose(name), "")
    match None if kind is None else _loose(kind):
        case None:
            return unicode.category_of(known) or unicode.script_of(known) or unicode.property_of(known)
        case "gc" | "generalcategory":
            return unicode.category_of(known)
        case "sc" | "script":
            return unicode.script_of(known)
    return None


def _loose(name: str) -> str:
    """A name without what Unicode's loose matching ignores (UAX 44, LM3)."""
    return re.sub("^is|[ _-]", "", name.lower())


_NAMES: Final = {_loose(name): name for name in (*CATEGORIES, *unicode.PROPERTIES, *SCRIPTS)}
