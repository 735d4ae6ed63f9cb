"""Reads grammars in EBNF, as XGrammar and llama.cpp write them: ``root ::= "yes" | "no"``.

Rules derive texts character by character, and ``root`` derives the whole text. A rule ends where the next one begins, so
it may have several lines. What the two programs read differently is refused, as are tokens, lookaheads and functions.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from draftline.structured.regular import charset
from draftline.structured.regular.charset import CharSet

ROOT: Final = "root"
"""The rule of whole texts."""

MAX_NESTING: Final = 100
"""The most parentheses inside one another."""


@dataclass(frozen=True, slots=True)
class Character:
    """One character of a set."""

    set: CharSet


@dataclass(frozen=True, slots=True)
class Rule:
    """A text of another rule."""

    name: str


@dataclass(frozen=True, slots=True)
class Concatenation:
    """The parts one after the other; no parts are the empty text."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Alternation:
    """Any of the options."""

    options: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Times:
    """At least ``low`` and at most ``high`` times; None is unbounded."""

    part: Expression
    low: int
    high: int | None


Expression = Character | Rule | Concatenation | Alternation | Times

_DEFINITION: Final = re.compile(r"""(?:^|[\r\n])[^\S\r\n]*[^\s"'/:#|]+\s*::=""")
_TOKEN: Final = re.compile(
    r"""(?P<skip>\s+|\#[^\r\n]*)
    |(?P<define>\w[\w.-]*)\s*::=
    |(?P<name>\w[\w.-]*)
    |(?P<text>"(?:[^"\\\r\n]|\\.)*")
    |(?P<set>\[(?:[^\]\\\r\n]|\\.)*\])
    |\{\s*(?P<low>[0-9]+)\s*(?P<comma>,)?\s*(?P<high>[0-9]+)?\s*\}
    |(?P<sign>[|()*+?.])""",
    re.VERBOSE,
)
_CHARACTER: Final = re.compile(r"\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})|\\(.)|(.)", re.DOTALL)
_CONTROL: Final = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "v": "\v"}
_COUNTS: Final[Mapping[str, tuple[int, int | None]]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_MAX_DIGITS: Final = 9
"""The most digits of a count."""
_QUOTED: Final = 20
"""Characters that an error quotes."""


def is_ebnf(source: str) -> bool:
    """Whether a grammar is in EBNF, and not in Lark, where a colon ends the name of a rule."""
    return _DEFINITION.search(source) is not None


def read_ebnf(source: str) -> dict[str, Expression]:
    """The rules of a grammar by name, among them `ROOT`.

    Raises:
        ValueError: it cannot be read. The message has the line.
    """
    return _Reader(source).rules()


class _Reader:
    """Reads one grammar from its begin to its end."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._tokens: list[re.Match[str]] = []
        at = 0
        while at < len(source):
            token = _TOKEN.match(source, at)
            if token is None:
                raise self._error(at, "expected a rule, a text, a set of characters or an operator")
            at = token.end()
            if token.lastgroup != "skip":
                self._tokens.append(token)
        self._next = 0

    def rules(self) -> dict[str, Expression]:
        found: dict[str, Expression] = {}
        while (token := self._token()) is not None:
            name = token["define"]
            if name is None:
                raise self._error(token.start(), "expected the name of a rule and ::=")
            if name in found:
                raise self._error(token.start(), f"the rule {name!r} is defined twice")
            self._next += 1
            found[name] = self._options(0)
            if self._is_sign(")"):
                raise self._error(self._at(), "a parenthesis ends that was not begun")
        for token in self._tokens:
            if token["name"] is not None and token["name"] not in found:
                raise self._error(token.start(), f"the rule {token['name']!r} is not defined")
        if ROOT not in found:
            raise ValueError(f"the EBNF has no rule {ROOT!r}, which derives whole texts")
        return found

    def _options(self, depth: int) -> Expression:
        if depth > MAX_NESTING:
            raise self._error(self._at(), f"parentheses nest deeper than {MAX_NESTING}")
        options = [self._sequence(depth)]
        while self._is_sign("|"):
            self._next += 1
            options.append(self._sequence(depth))
        return options[0] if len(options) == 1 else Alternation(tuple(options))

    def _sequence(self, depth: int) -> Expression:
        parts: list[Expression] = []
        repeated = True
        while (token := self._token()) is not None and token["define"] is None and not self._is_sign("|", ")"):
            counts = self._counts(token)
            if counts is None:
                parts.append(self._part(token, depth))
            elif not repeated:
                self._next += 1
                parts[-1] = Times(parts[-1], *counts)
            else:
                raise self._error(token.start(), "nothing stands before the repetition")
            repeated = counts is not None
        return parts[0] if len(parts) == 1 else Concatenation(tuple(parts))

    def _part(self, token: re.Match[str], depth: int) -> Expression:
        self._next += 1
        if token["name"] is not None:
            return Rule(token["name"])
        if token["text"] is not None:
            return Concatenation(tuple(Character(charset.of(one)) for one, _ in self._characters(token, "text")))
        if token["set"] is not None:
            return Character(self._set(token))
        if token["sign"] == ".":
            return Character(charset.ALL)
        inside = self._options(depth + 1)
        if not self._is_sign(")"):
            raise self._error(token.start(), "the parenthesis does not end")
        self._next += 1
        return inside

    def _counts(self, token: re.Match[str]) -> tuple[int, int | None] | None:
        if token["low"] is None:
            return _COUNTS.get(token["sign"] or "")
        if max(len(token["low"]), len(token["high"] or "")) > _MAX_DIGITS:
            raise self._error(token.start(), f"a count has more than {_MAX_DIGITS} digits")
        low = int(token["low"])
        high = int(token["high"]) if token["high"] else None if token["comma"] else low
        if high is not None and high < low:
            raise self._error(token.start(), f"at least {low} and at most {high} times cannot be")
        return low, high

    def _set(self, token: re.Match[str]) -> CharSet:
        characters = self._characters(token, "set")
        negated = bool(characters) and characters[0] == ("^", False)
        ranges: list[tuple[int, int]] = []
        at = int(negated)
        while at < len(characters):
            low = high = ord(characters[at][0])
            if at + 2 < len(characters) and characters[at + 1] == ("-", False):
                high = ord(characters[at + 2][0])
                at += 2
            if high < low:
                raise self._error(token.start(), f"a range ends before it begins, at {chr(low)!r}")
            ranges.append((low, high))
            at += 1
        if not ranges:  # llama.cpp reads [^] as no character, and XGrammar as any
            raise self._error(token.start(), "a set has no characters")
        return charset.complement(charset.charset(ranges)) if negated else charset.charset(ranges)

    def _characters(self, token: re.Match[str], kind: str) -> list[tuple[str, bool]]:
        """The characters of a text or a set, each with whether it was escaped."""
        found = []
        for one in _CHARACTER.finditer(token[kind], 1, len(token[kind]) - 1):
            code, escaped, plain = one[1] or one[2] or one[3], one[4], one[5]
            if one[1] is not None and one.string[one.end()] in string.hexdigits:
                # Of \x41B, llama.cpp reads two digits, and XGrammar all.
                raise self._error(token.start(), f"{one[0]} is followed by one more digit: write \\u00{one[1]}")
            if code is not None:
                number = int(code, 16)
                if 0xD800 <= number < 0xE000 or number > 0x10FFFF:
                    advice = "no character: write \\U and the eight digits of one"
                    raise self._error(token.start(), f"{one[0]} is {advice}")
                found.append((chr(number), True))
            elif escaped is None:
                found.append((plain, False))
            elif escaped.isalnum() and escaped not in _CONTROL:
                raise self._error(token.start(), f"the escape {one[0]} is not known")
            else:
                found.append((_CONTROL.get(escaped, escaped), True))
        return found

    def _token(self) -> re.Match[str] | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _is_sign(self, *signs: str) -> bool:
        token = self._token()
        return token is not None and token["sign"] in signs

    def _at(self) -> int:
        token = self._token()
        return len(self._source) if token is None else token.start()

    def _error(self, at: int, message: str) -> ValueError:
        line = self._source.count("\n", 0, at) + 1
        quoted = self._source[at : at + _QUOTED].partition("\n")[0]
        return ValueError(
            f"the EBNF cannot be read: line {line}, {f'at {quoted!r}' if quoted else 'at its end'}: {message}"
        )
