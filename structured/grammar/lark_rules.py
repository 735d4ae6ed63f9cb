"""Rules of a Lark grammar that no output can follow.

Some match no finite text, such as ``a: "x" a``: a text that enters one never ends. Others have more alternatives than
the parser follows at once, which it would notice only where an output reaches them. Only the structure of rules is
read. Terminals, nested grammars and everything else count as texts that end: llguidance checks them itself.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

_TOKEN: Final = re.compile(
    r"""(?P<skip>[ \t\r\f]+|(?://|\#)[^\n]*)
    |(?P<line>\n)
    |(?P<text>"(?:[^"\\\n]|\\.)*"i?|/(?:[^/\\\n]|\\.)+/[imslux]*|<[^>\n]*>|@\w+)
    |(?P<rule>[!?]*_*[a-z]\w*)
    |(?P<terminal>_*[A-Z]\w*|\d+|_)
    |(?P<sign>\.\.|::|->|%\w+|[^\s])""",
    re.VERBOSE,
)

_Token = tuple[str, str]
_Needs = frozenset[frozenset[str]]
"""The alternatives of an expression: for each, the rules that its texts need."""

MAX_ALTERNATIVES: Final = 2_000
"""The most alternatives of one rule: a mask among so many takes about 10 ms."""

_NOTHING: Final[_Needs] = frozenset([frozenset()])


class _UnreadableError(Exception):
    """The grammar has syntax that is not read here."""


def rule_error(grammar: str) -> str | None:
    """Why a rule that ``start`` reaches cannot be followed; None if there is no such rule."""
    try:
        bodies = _bodies(grammar)
        rules = {name: (_alternatives_of(body, bodies), _size(body)) for name, body in bodies.items()}
    except (_UnreadableError, IndexError, ValueError):
        return None  # llguidance will say what is wrong with it
    ending = _ending({name: needs for name, (needs, _) in rules.items()})
    reached = dict.fromkeys(["start"] if "start" in rules else [])
    waiting = list(reached)
    for name in waiting:
        needs, size = rules[name]
        if size > MAX_ALTERNATIVES:
            advice = "a terminal may have more"
            return f"the rule {name!r} has {size} alternatives; at most {MAX_ALTERNATIVES} are allowed ({advice})"
        after = [one for one in sorted(frozenset().union(*needs)) if one not in reached]
        reached.update(dict.fromkeys(after))
        waiting.extend(after)
    # The last one is the likely cause: those before it may only lead to it.
    endless = next((name for name in reversed(waiting) if name not in ending), None)
    if endless is None:
        return None
    return f"the rule {endless!r} matches no finite text: each of its alternatives needs a rule that never ends"


def _ending(rules: Mapping[str, _Needs]) -> set[str]:
    """The rules that match a finite text, in time linear in the grammar."""
    ending: set[str] = set()
    ready: list[str] = []
    # The alternatives that need a rule, each with the number of its rules that are not known to end.
    users: dict[str, list[_Alternative]] = {name: [] for name in rules}
    for name, needs in rules.items():
        for one in needs:
            alternative = _Alternative(name, len(one))
            for needed in one:
                users[needed].append(alternative)
            if not one:
                ready.append(name)
    while ready:
        name = ready.pop()
        if name not in ending:
            ending.add(name)
            for alternative in users[name]:
                alternative.unknown -= 1
                if not alternative.unknown:
                    ready.append(alternative.rule)
    return ending


@dataclass(slots=True)
class _Alternative:
    """An alternative of a rule, and how many of the rules that it needs are not known to end."""

    rule: str
    unknown: int


def _size(body: list[_Token]) -> int:
    return 1 + sum(token == ("sign", "|") for token in body)


def _bodies(grammar: str) -> dict[str, list[_Token]]:
    """For each rule its name and the tokens behind its colon."""
    bodies: dict[str, list[_Token]] = {}
    for statement in _statements(grammar):
        kind, name = statement[0]
        if kind == "rule":  # not a terminal or a directive
            colon = statement.index(("sign", ":"))
            bodies[name.lstrip("!?")] = statement[colon + 1 :]
    return bodies


def _alternatives_of(body: list[_Token], names: Container[str]) -> _Needs:
    needs, end = _alternatives(body, 0, names)
    if end != len(body):
        raise _UnreadableError
    return needs


def _statements(grammar: str) -> Iterator[list[_Token]]:
    """The tokens of each statement, without what is in braces within braces."""
    statement: list[_Token] = []
    position = depth = 0
    begins = True
    while position < len(grammar):
        found = _TOKEN.match(grammar, position)
        if found is None:
            raise _UnreadableError
        position = found.end()
        kind, text = str(found.lastgroup), found[0]
        if kind == "line":
            begins = True
            continue
        if kind == "skip":
            continue
        if depth == 0 and begins and _opens(grammar, found):
            if statement:
                yield statement
            statement = []
        begins = False
        depth += text == "{"
        if depth <= 1:
            statement.append((kind, text))
        depth -= text == "}"
    if statement:
        yield statement


def _opens(grammar: str, found: re.Match[str]) -> bool:
    """Whether a token at the beginning of a line begins a statement."""
    if found["rule"] or found["terminal"]:
        return (
            re.match(r"\s*(?:\[[^\]\n]*\])?(?:\.\d+)?(?:::_)?\s*:", grammar[found.end() : found.end() + 400])
            is not None
        )
    return found[0].startswith("%")


def _alternatives(tokens: list[_Token], at: int, names: Container[str]) -> tuple[_Needs, int]:
    options: set[frozenset[str]] = set()
    while True:
        sequence: _Needs = _NOTHING
        while at < len(tokens) and tokens[at][1] not in ("|", ")", "]"):
            item, at = _item(tokens, at, names)
            # An item with several alternatives is rare: keep the product small.
            if len(sequence) * len(item) > 10_000:
                raise _UnreadableError
            sequence = frozenset(one | other for one in sequence for other in item)
        options |= sequence
        if at < len(tokens) and tokens[at][1] == "|":
            at += 1
            continue
        return frozenset(options), at


def _item(tokens: list[_Token], at: int, names: Container[str]) -> tuple[_Needs, int]:
    kind, text = tokens[at]
    at += 1
    needs = _NOTHING
    if text in ("(", "["):
        needs, at = _alternatives(tokens, at, names)
        at += 1
        if text == "[":
            needs = _NOTHING
    elif kind == "rule":
        needs = frozenset([frozenset([text])]) if text in names else _NOTHING
        if tokens[at : at + 1] == [("sign", "::")]:  # the parameter of a rule
            at = _after_call(tokens, at + 1)
    elif text == "%if":
        return _NOTHING, _after_call(tokens, at)
    elif text == "->":
        return _NOTHING, at + 1
    elif text.startswith("%") or text == "{":
        while tokens[at - 1][1] != "}":
            at += 1
        return _NOTHING, at
    if at < len(tokens) and tokens[at][1] in ("?", "*"):
        return _NOTHING, at + 1
    if tokens[at : at + 1] == [("sign", "{")]:
        least = tokens[at + 1][1]
        while tokens[at][1] != "}":
            at += 1
        return (needs if least.isdigit() and int(least) else _NOTHING), at + 1
    if tokens[at : at + 1] == [("sign", "~")] and tokens[at + 1][1].isdigit():
        least, at = tokens[at + 1][1], at + 2
        if tokens[at : at + 1] == [("sign", "..")]:
            at += 2
        return (needs if int(least) else _NOTHING), at
    return needs, at


def _after_call(tokens: list[_Token], at: int) -> int:
    """The index after a name or a number, and its arguments in brackets."""
    at += 1
    if at < len(tokens) and tokens[at][1] == "(":
        depth = 0
        while True:
            depth += {"(": 1, ")": -1}.get(tokens[at][1], 0)
            at += 1
            if depth == 0:
                break
    return at
