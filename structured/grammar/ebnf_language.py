"""The language of a grammar in EBNF, in the forms that backends read.

Terminals of Lark take the longest match, and a rule of EBNF takes any. So a grammar without recursion becomes a regular
expression, and any other one a Lark grammar whose terminals are single characters.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from draftline.structured.grammar.ebnf import ROOT, Alternation, Character, Concatenation, Expression, Rule, Times
from draftline.structured.grammar.ebnf_factoring import left_factored
from draftline.structured.regular import syntax

MAX_NODES: Final = 20_000
"""The most nodes of a regular expression that is longer than its grammar, since each rule is written out where it is used."""


def ebnf_regex(rules: Mapping[str, Expression], max_nodes: int) -> str | None:
    """The texts of a grammar as a regular expression; None if it is recursive or needs more nodes."""
    trees: dict[str, syntax.Node | None] = {}

    def of_rule(name: str) -> syntax.Node:
        if name not in trees:
            trees[name] = None  # until it is known: a rule that needs itself finds this
            trees[name] = of(rules[name])
        tree = trees[name]
        if tree is None:
            raise _NotRegularError
        return tree

    def all_of(expressions: Iterable[Expression]) -> list[syntax.Node]:
        found, size = [], 0
        for one in map(of, expressions):
            found.append(one)
            size += one.size
            if size > max_nodes:
                raise _NotRegularError
        return found

    def of(expression: Expression) -> syntax.Node:
        match expression:
            case Character(characters):
                return syntax.Chars(characters)
            case Rule(name):
                return of_rule(name)
            case Concatenation(parts):
                return syntax.seq(*all_of(parts))
            case Alternation(options):
                return syntax.alt(all_of(options))
            case Times(part, low, high):
                return syntax.repeat(of(part), low, high)

    try:
        return syntax.to_regex(of_rule(ROOT))
    except (_NotRegularError, RecursionError):
        return None


class _NotRegularError(Exception):
    """The grammar has no regular expression of a sensible size."""


def ebnf_lark(rules: Mapping[str, Expression]) -> str:
    """The same grammar for llguidance, a character a terminal. Rules keep their names as far as Lark allows it."""
    rules = left_factored(rules)
    names = _lark_names(rules)

    def of(expression: Expression) -> str:
        match expression:
            case Character(characters):
                return f"/{syntax.to_regex(syntax.Chars(characters))}/"
            case Rule(name):
                return names[name]
            case Concatenation(parts):
                return " ".join(map(of, parts)) or '""'
            case Alternation(options):
                return f"({' | '.join(map(of, options))})"
            case Times(part, low, high):
                return f"({of(part)}){{{low},{'' if high is None else high}}}"

    return "\n".join((f"start: {names[ROOT]}", *(f"{names[name]}: {of(body)}" for name, body in rules.items())))


def _lark_names(rules: Iterable[str]) -> dict[str, str]:
    """Names for Lark by the rules' own, which are kept where Lark takes them."""
    names: dict[str, str] = {}
    taken, alike = {"start"}, Counter[str]()
    for name in rules:
        plain = re.sub(r"[^a-z0-9_]", "_", name.lower())
        free = name if re.fullmatch(r"[a-z][a-z0-9_]*", name) else f"r_{plain}"
        while free in taken:
            alike[plain] += 1
            free = f"r{alike[plain]}_{plain}"
        taken.add(free)
        names[name] = free
    return names
