"""Left factoring of EBNF: options with a common beginning share it. What nests deep gets a rule of its own.

A parser follows all options that fit the text so far. Of thousands of words, few remain behind a character if the words
are a tree, and all of them must be followed at their begin if they are a list.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count, takewhile
from typing import Final

from draftline.structured.grammar.ebnf import Alternation, Concatenation, Expression, Rule, Times

_FEW: Final = 100
"""So many options are left as they are written."""

_DEEP: Final = 8
"""So deep, options and repetitions nest in one rule: llguidance parses about 25 parentheses inside one another."""

_Parts = tuple[Expression, ...]


def left_factored(rules: Mapping[str, Expression]) -> dict[str, Expression]:
    """The same language. The rules that are added have names that no rule of EBNF has."""
    found: dict[str, Expression] = {}
    waiting = [(name, [_parts(body)]) for name, body in rules.items()]
    numbers = count(1)

    def rule_of(options: list[_Parts]) -> Rule:
        name = f"{current.partition(' ')[0]} {next(numbers)}"
        waiting.append((name, options))
        return Rule(name)

    def of(expression: Expression, depth: int) -> Expression:
        if depth > _DEEP and isinstance(expression, Alternation | Times):
            return rule_of([(expression,)])
        match expression:
            case Concatenation(parts):
                return Concatenation(tuple(of(part, depth) for part in parts))
            case Times(part, low, high):
                return Times(of(part, depth + 1), low, high)
            case Alternation(options) if len(options) > _FEW:
                return grouped(list(dict.fromkeys(map(_parts, options))), depth + 1)
            case Alternation(options):
                return Alternation(tuple(of(option, depth + 1) for option in options))
        return expression

    def grouped(options: list[_Parts], depth: int) -> Expression:
        groups: dict[_Parts, list[_Parts]] = {}
        for option in options:
            groups.setdefault(option[:1], []).append(option)
        joined = tuple(join(group, depth) for group in groups.values())
        return joined[0] if len(joined) == 1 else Alternation(joined)

    def join(group: list[_Parts], depth: int) -> Expression:
        first = group[0]
        if len(group) == 1:
            return of(Concatenation(first), depth)
        shared = sum(
            1 for _ in takewhile(lambda column: column.count(column[0]) == len(column), zip(*group, strict=False))
        )
        rest = rule_of([option[shared:] for option in group])
        return Concatenation((of(Concatenation(first[:shared]), depth), rest))

    for current, options in waiting:
        found[current] = grouped(options, 0)
    return found


def _parts(expression: Expression) -> _Parts:
    """The parts of a sequence one after the other, without sequences inside it."""
    if not isinstance(expression, Concatenation):
        return (expression,)
    return tuple(one for part in expression.parts for one in _parts(part))
