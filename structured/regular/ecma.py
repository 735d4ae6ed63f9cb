"""ECMA-262 patterns, the dialect of JSON Schema, as syntax trees over code points.

Backreferences are not translated, nor are lookaheads and word boundaries in lookbehinds, nor lookbehinds and word boundaries in
lookaheads that are not at the start: `UntranslatablePatternError` names them. Capturing groups and lazy repetitions do not change
the language, so they are read as plain ones.

A word has only ASCII's letters in ECMA-262, and Unicode's in the validators of other languages. So where a pattern has a word
boundary, its tree has the texts in which all of them find a match, and its widest tree those in which any may.

A text has no surrogates, so a class has none, whichever of its ranges hold some. Only one of high surrogates right before one
of low ones means the characters that these pairs are.
"""

import functools
import re
import sys
from typing import Final

from draftline.structured.regular import charset
from draftline.structured.regular.categories import by_category, category
from draftline.structured.regular.charset import CharSet
from draftline.structured.regular.expression import conjuncts
from draftline.structured.regular.pattern_reader import MAX_NESTING, PatternReader
from draftline.structured.regular.pattern_reader import UntranslatablePatternError as UntranslatablePatternError
from draftline.structured.regular.properties import disputed, emoji_property, fixed_property, script
from draftline.structured.regular.syntax import (
    Anchor,
    Chars,
    Lookahead,
    Lookbehind,
    Node,
    alt,
    conditions,
    no_word_boundary,
    repeat,
    seq,
    word_boundary,
)

_COUNT: Final = re.compile(r"\{(\d+)(,(\d*))?\}")
_HEX2: Final = re.compile(r"x([0-9A-Fa-f]{2})")
_HEX4: Final = re.compile(r"u([0-9A-Fa-f]{4})")
_HEX_BRACED: Final = re.compile(r"u\{([0-9A-Fa-f]{1,6})\}")
_NUMBER: Final = re.compile(r"0[0-9]+|[1-9][0-9]*")
"""The digits of a backreference or an octal escape. One 0 alone is a character."""
_PROPERTY: Final = re.compile(r"[pP]\{([^={}]*=)?([^={}]*)\}")
_ASSERTION: Final = re.compile(r"[\^$]|\(\?<?[=!]|\\[bB]")
_ASSERTIONS: Final = {
    "^": "anchor",
    "$": "anchor",
    "(?=": "lookahead",
    "(?!": "lookahead",
    "(?<=": "lookbehind",
    "(?<!": "lookbehind",
    "\\b": "word boundary",
    "\\B": "word boundary",
}
_LOOK: Final = re.compile(r"\?(<?)([=!])")
_LOOK_NESTING: Final = 4
"""The groups whose nesting a lookahead or lookbehind counts as."""
_LOW_SURROGATES: Final = (0xDC00, 0xDFFF)
_SURROGATE: Final = "a surrogate that is not one of a pair"
_CLASSES: Final = {"d": charset.DIGIT, "w": charset.WORD, "s": charset.SPACE}
_CONTROLS: Final = {"t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r"}


@functools.lru_cache(maxsize=1024)
def parse(pattern: str) -> Node:
    """The syntax tree of a pattern, with its anchors. The text around a match is not part of the tree.

    Raises:
        UntranslatablePatternError: it is not a regular language, or malformed.
    """
    return _parsed(pattern, charset.WORD, charset.MAYBE_WORD)


@functools.lru_cache(maxsize=1024)
def parse_widest(pattern: str) -> Node:
    """The syntax tree of all texts in which any validator may find a match. Raises what `parse` raises."""
    return _parsed(pattern, charset.MAYBE_WORD, charset.WORD)


def _parsed(pattern: str, word: CharSet, near_word: CharSet) -> Node:
    parser = _Parser(pattern, word, near_word)
    tree = parser.alternatives(0)
    if parser.position < len(pattern):
        raise UntranslatablePatternError("unmatched ')'")
    return sighted(tree)


def may_have_boundaries(schema: str) -> bool:
    """Whether a pattern in the text of a schema may have another widest tree."""
    return re.search(r"\\\\[bB]", schema) is not None


def sighted(tree: Node) -> Node:
    """The tree of a whole pattern, in which each lookahead and lookbehind sees the text that it asks for.

    Raises:
        UntranslatablePatternError: there is a lookahead in a lookbehind, or the other way round.
    """
    # An automaton of the text before a place does not see the text after it, and the other way round.
    # A lookahead at the start of the text has nothing before it that it would have to see.
    for part, _ in conjuncts(tree):
        _refuse_blind(part)
    return tree


def _refuse_blind(tree: Node) -> None:
    for one in conditions(tree):
        if isinstance(one, Anchor):
            continue
        for inner in conditions(one.node):
            if isinstance(one, Lookahead) and isinstance(inner, Lookbehind):
                raise UntranslatablePatternError("a lookbehind or \\b in a lookahead that is not at the start")
            if isinstance(one, Lookbehind) and (isinstance(inner, Lookahead) or inner == Anchor(end=True)):
                raise UntranslatablePatternError("a lookahead, $ or \\b in a lookbehind")
        _refuse_blind(one.node)


class _Parser(PatternReader):
    def __init__(self, pattern: str, word: CharSet, near_word: CharSet) -> None:
        super().__init__(pattern)
        self._words = (word, near_word)
        self._uncertain = charset.NONE  # characters of which Unicode, by its version, says this and that

    def alternatives(self, nesting: int) -> Node:
        if nesting > MAX_NESTING:
            raise UntranslatablePatternError("groups nest too deep")
        options = [self._sequence(nesting)]
        while self.eat("|"):
            options.append(self._sequence(nesting))
        return alt(options)

    def _sequence(self, nesting: int) -> Node:
        parts: list[Node] = []
        while self.peek() not in ("", "|", ")"):
            assertion = _ASSERTION.match(self.text, self.position)
            parts.append(self._quantified(self._atom(nesting), assertion))
        return seq(*parts)

    def _quantified(self, atom: Node, assertion: re.Match[str] | None) -> Node:
        counts = self.counts(_COUNT)
        if counts is None:
            return atom
        low, high = counts
        if high is not None and high < low:
            raise UntranslatablePatternError("a repetition whose minimum exceeds its maximum")
        self.eat("?")
        if assertion is not None:
            raise UntranslatablePatternError(f"a repeated {_ASSERTIONS[assertion[0]]}")
        if self.peek() in ("*", "+"):
            raise UntranslatablePatternError(f"nothing to repeat at offset {self.position}")
        return repeat(atom, low, high)

    def _atom(self, nesting: int) -> Node:
        if self.eat("("):
            return self._group(nesting)
        if self.eat("^"):
            return Anchor(end=False)
        if self.eat("$"):
            return Anchor(end=True)
        if self.eat("."):
            return Chars(charset.complement(charset.LINE_END))
        if self.eat("["):
            return self._characters(self._class())
        if self.peek() in ("*", "+", "?"):
            raise UntranslatablePatternError(f"nothing to repeat at offset {self.position}")
        if self.eat("\\"):
            if self.eat("b"):
                return word_boundary(*self._words)
            if self.eat("B"):
                return no_word_boundary(*self._words)
            return self._characters(self._escape())
        character = self.peek()
        self.position += 1
        return self._characters(_code(ord(character)))

    def _characters(self, ranges: CharSet) -> Node:
        """One character of some ranges, which may hold surrogates; or one that a pair of surrogates stands for."""
        characters = charset.charset(ranges)
        if characters or not ranges:
            return Chars(characters)
        if any(high >= _LOW_SURROGATES[0] for _, high in ranges):
            raise UntranslatablePatternError(_SURROGATE)
        lows = self._class() if self.eat("[") else self._escape() if self.eat("\\") else ()
        # A repetition would be one of the low surrogate alone.
        outside = any(low < _LOW_SURROGATES[0] or high > _LOW_SURROGATES[1] for low, high in lows)
        if not lows or outside or self.peek() in ("*", "+", "?", "{"):
            raise UntranslatablePatternError(_SURROGATE)
        units = [unit for low, high in ranges for unit in range(low, high + 1)]
        return Chars(charset.charset((_paired(unit, low), _paired(unit, high)) for unit in units for low, high in lows))

    def _group(self, nesting: int) -> Node:
        found = self.match(_LOOK)
        if found is None and not self.eat("?:"):
            self.match(re.compile(r"\?P?<[A-Za-z_$][\w$]*>"))
        if found is None and self.peek() == "?":
            raise UntranslatablePatternError(f"the group ({self.text[self.position : self.position + 3]}…")
        # Each lookahead has an automaton of its own, within which those inside it are built.
        around = self._words
        if found is not None and found[2] == "!":
            self._words = (around[1], around[0])
        inner = self.alternatives(nesting + (1 if found is None else _LOOK_NESTING))
        self._words = around
        if not self.eat(")"):
            raise UntranslatablePatternError("a group without its ')'")
        if found is None:
            return inner
        return Lookbehind(inner, found[2] == "=") if found[1] else Lookahead(inner, found[2] == "=")

    def _class(self) -> CharSet:
        """The ranges of a class, which may overlap and hold surrogates."""
        negated = self.eat("^")
        members: list[tuple[int, int]] = []
        self._uncertain = charset.NONE
        while not self.eat("]"):
            low = self._class_atom()
            if self.text.startswith("-", self.position) and not self.text.startswith("-]", self.position):
                before = self.position
                self.position += 1
                high = self._class_atom()
                first, last = charset.single(low), charset.single(high)
                if first is None or last is None:
                    # As in browsers: with \w on either side, "-" is a character.
                    self.position = before
                    members.extend([*low, *charset.of("-")])
                    self.position += 1
                    continue
                if first > last:
                    raise UntranslatablePatternError("a character range in reverse order")
                members.append((first, last))
            else:
                members.extend(low)
        if not negated:
            return tuple(members)
        outside = charset.complement(charset.charset(members))
        return charset.difference(outside, self._uncertain)

    def _class_atom(self) -> CharSet:
        if self.position >= len(self.text):
            raise UntranslatablePatternError("a character class without its ']'")
        if self.eat("\\"):
            if (found := self.match(_NUMBER)) is not None:
                raise UntranslatablePatternError(f"the octal escape \\{found[0]}")
            return charset.of("\b") if self.eat("b") else self._escape()
        character = self.peek()
        self.position += 1
        return _code(ord(character))

    def _escape(self) -> CharSet:
        letter = self.peek()
        if letter == "":
            raise UntranslatablePatternError("a lone \\ at the end")
        if (known := _CLASSES.get(letter.lower())) is not None:
            self.position += 1
            return known if letter.islower() else charset.complement(known)
        if letter in _CONTROLS:
            self.position += 1
            return charset.of(_CONTROLS[letter])
        if letter == "c" and re.match(r"c[A-Za-z]", self.text[self.position :]):
            self.position += 2
            return charset.of(chr(ord(self.text[self.position - 1]) % 32))
        found = self.match(_HEX2) or self.match(_HEX_BRACED)
        if found:
            if (code := int(found[1], 16)) > sys.maxunicode:
                raise UntranslatablePatternError(f"the escape \\{found[0]}")
            return _code(code)
        if (found := self.match(_HEX4)) is not None:
            return self._utf16(int(found[1], 16))
        if (found := self.match(_PROPERTY)) is not None:
            return self._property(found[1], found[2], negated=found[0][0] == "P")
        if self.eat("k"):
            raise UntranslatablePatternError("the backreference \\k")
        if (found := self.match(_NUMBER)) is not None:
            what = "octal escape" if found[0].startswith("0") else "backreference"
            raise UntranslatablePatternError(f"the {what} \\{found[0]}")
        if self.eat("0"):
            return charset.of("\0")
        if letter.isalpha():
            raise UntranslatablePatternError(f"the escape \\{letter}")
        self.position += 1
        return charset.of(letter)

    def _property(self, kind: str | None, name: str, negated: bool) -> CharSet:
        if kind is None and (fixed := fixed_property(name)) is not None:
            return charset.complement(fixed) if negated else fixed
        inside = _members(kind, name)
        if inside is None:
            raise UntranslatablePatternError(f"the Unicode property {kind or ''}{name}")
        # The next version of Unicode may put an unassigned character in any class: it is in neither set.
        uncertain = charset.union(by_category()["Cn"], disputed(name))
        self._uncertain = charset.union(self._uncertain, uncertain)
        return charset.difference(charset.complement(inside) if negated else inside, uncertain)

    def _utf16(self, unit: int) -> CharSet:
        if 0xD800 <= unit <= 0xDBFF and self.text.startswith("\\u", self.position):
            follows = _HEX4.match(self.text, self.position + 1)
            if follows and 0xDC00 <= (low := int(follows[1], 16)) <= 0xDFFF:
                self.position = follows.end()
                return _code(_paired(unit, low))
        return _code(unit)


def _code(code: int) -> CharSet:
    return ((code, code),)


def _paired(high: int, low: int) -> int:
    """The character that two surrogates stand for."""
    return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00)


def _members(kind: str | None, name: str) -> CharSet | None:
    if kind in ("sc=", "Script="):
        return script(name)
    found = category(name) if kind in (None, "gc=", "General_Category=") else None
    return emoji_property(name) if found is None and kind is None else found
