"""Equivalent states of deterministic automata."""

from __future__ import annotations

from collections.abc import Sequence


def equivalent_states(steps: Sequence[Sequence[int]], accepts: Sequence[bool]) -> list[int]:
    """A number for each state of a complete automaton: equivalent states, and no others, have the same.

    Where a block of states splits, its largest part keeps the number (Hopcroft). So a state changes its number at most log n
    times, and only the states before such a state are compared again. Automata of long bounded texts would need a round of
    all states for each length otherwise.

    Args:
        steps: for each state, the next state by letter.
        accepts: for each state, whether it is accepting.
    """
    block = [int(accepting) for accepting in accepts]
    members: list[set[int]] = [set(), set()]
    before: list[set[int]] = [set() for _ in steps]
    for state, row in enumerate(steps):
        members[block[state]].add(state)
        for target in row:
            before[target].add(state)
    waiting = set(range(len(block)))
    while waiting:
        parts: dict[int, dict[tuple[int, ...], set[int]]] = {}
        for state in waiting:
            after = tuple([block[target] for target in steps[state]])
            parts.setdefault(block[state], {}).setdefault(after, set()).add(state)
        waiting = set()
        for number, by_steps in parts.items():
            # A state that does not wait steps to other blocks than those that do.
            rest = members[number].difference(*by_steps.values())
            split = sorted(filter(None, [rest, *by_steps.values()]), key=len)
            members[number] = split.pop()
            for part in split:
                for state in part:
                    block[state] = len(members)
                    waiting |= before[state]
                members.append(part)
    return block
