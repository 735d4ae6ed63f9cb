"""Rules of EBNF that end with themselves, as repetitions.

``chars ::= [a-z] chars | ""`` derives ``[a-z]*``. As a rule, it is open at all characters so far, and a parser goes through
them again at each further one. As a repetition, it costs the same at each character, and it may have an automaton.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from draftline.structured.grammar.ebnf import Alternation, Concatenation, Expression, Rule, Times

_EMPTY: Final = Concatenation(())


def with_loops(rules: Mapping[str, Expression]) -> dict[str, Expression]:
    """The same rules. None needs itself at its end, but for those that match no finite text.

    A rule ``r ::= a r | b`` derives ``a* b``, also where ``a`` and ``b`` need ``r``.
    """
    found = {}
    for name, body in rules.items():
        before, others = _split(body, name)
        found[name] = body if before is None or others is None else Concatenation((Times(before, 0, None), others))
    return found


def _split(body: Expression, name: str) -> tuple[Expression | None, Expression | None]:
    """What comes before the rule ``name`` where it ends a text, and the texts that end otherwise; None if there are none."""
    match body:
        case Rule(other) if other == name:
            return _EMPTY, None
        case Alternation(options):
            parts = [_split(option, name) for option in options]
            return _any_of(part for part, _ in parts), _any_of(part for _, part in parts)
        case Times(part, 0, 1):
            before, others = _split(part, name)
            return before, body if before is None else _any_of((others, _EMPTY))
        case Concatenation((*start, end)):
            before, others = _split(end, name)
            if before is None:
                return None, body
            return Concatenation((*start, before)), None if others is None else Concatenation((*start, others))
    return None, body


def _any_of(parts: Iterable[Expression | None]) -> Expression | None:
    known = tuple(part for part in parts if part is not None)
    return Alternation(known) if len(known) > 1 else known[0] if known else None
