"""Left factoring of EBNF: options with a common beginning share it.

A parser follows all options that fit the text so far. Of thousands of words, few remain behind a character if the words
are a tree, and all of them must be followed at their begin if they are a list.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count, takewhile
from typing import Final

from draftline.structured.grammar.ebnf import Expression, Options, Rule, Sequence, Times

_FEW: Final = 100
"""So many options are left as they are written."""

_Parts = tuple[Expression, ...]


def left_factored(rules: Mapping[str, Expression]) -> dict[str, Expression]:
    """The same language. What follows a common beginning has a rule of its own, whose name no rule of EBNF has."""
    found: dict[str, Expression] = {}
    waiting = [(name, [_parts(body)]) for name, body in rules.items()]
    numbers = count(1)

    def of(expression: Expression) -> Expression:
        match expression:
            case Sequence(parts):
                return Sequence(tuple(map(of, parts)))
            case Times(part, low, high):
                return Times(of(part), low, high)
            case Options(options) if len(options) > _FEW:
                return grouped(list(dict.fromkeys(map(_parts, options))))
            case Options(options):
                return Options(tuple(map(of, options)))
        return expression

    def grouped(options: list[_Parts]) -> Expression:
        groups: dict[_Parts, list[_Parts]] = {}
        for option in options:
            groups.setdefault(option[:1], []).append(option)
        joined = tuple(map(join, groups.values()))
        return joined[0] if len(joined) == 1 else Options(joined)

    def join(group: list[_Parts]) -> Expression:
        first = group[0]
        if len(group) == 1:
            return Sequence(tuple(map(of, first)))
        shared = sum(
            1 for _ in takewhile(lambda column: column.count(column[0]) == len(column), zip(*group, strict=False))
        )
        name = f"{current.partition(' ')[0]} {next(numbers)}"
        waiting.append((name, [option[shared:] for option in group]))
        return Sequence((*map(of, first[:shared]), Rule(name)))

    for current, options in waiting:
        found[current] = grouped(options)
    return found


def _parts(expression: Expression) -> _Parts:
    """The parts of a sequence one after the other, without sequences inside it."""
    if not isinstance(expression, Sequence):
        return (expression,)
    return tuple(one for part in expression.parts for one in _parts(part))
