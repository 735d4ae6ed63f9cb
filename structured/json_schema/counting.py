"""Arrays whose items are counted, as a small automaton over the kinds of items."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from draftline.structured.json_schema.shapes import NEVER, ArrayShape, Contains, Demand, Demands, both

MAX_STATES: Final = 2_000


@dataclass(frozen=True, slots=True)
class Counter:
    """States from 0 on, the start; every state leads to an end.

    Attributes:
        steps: for each state, what an item may be and the state after it.
        accepts: for each state, whether the array may end there.
    """

    steps: tuple[tuple[tuple[Demands, int], ...], ...]
    accepts: tuple[bool, ...]


def counted_item(item: Demands, counted: Contains) -> Demands:
    """An item that counts."""
    return both(item, counted.value)


def other_item(item: Demands, counted: Contains) -> Demands:
    """An item that need not count; where there is a greatest count: that does not."""
    if counted.high is None:
        return item
    (demand,) = counted.value
    return both(item, frozenset([Demand(demand.location, not demand.holds)]))


def is_small(shape: ArrayShape) -> bool:
    """Whether the automaton stays within its budget."""
    (counted,) = shape.contains
    counts = (counted.low if counted.high is None else counted.high) + 1
    return (_last_index(shape, counted) + 1) * counts <= MAX_STATES


def _last_index(shape: ArrayShape, counted: Contains) -> int:
    """From which index on, at the latest, it makes no difference how many items there are."""
    return max(len(shape.prefix), counted.start, shape.min_items, shape.max_items or 0)


def counter(shape: ArrayShape, possible: Callable[[Demands], bool]) -> Counter | None:
    """The automaton of an array with one count of items; None where no array fits.

    Args:
        shape: with exactly one entry in ``contains``, and small.
        possible: whether there is any value that meets the demands.
    """
    (counted,) = shape.contains
    last = _last_index(shape, counted)
    most = counted.low if counted.high is None else counted.high
    start = (0, 0)
    steps: dict[tuple[int, int], list[tuple[Demands, tuple[int, int]]]] = {}
    waiting = [start]
    for index, count in waiting:
        if (index, count) in steps:
            continue
        after: list[tuple[Demands, tuple[int, int]]] = []
        steps[index, count] = after
        if shape.max_items is not None and index >= shape.max_items:
            continue
        item = shape.item(index)
        following = min(index + 1, last)
        if index >= counted.start:
            if count < most or counted.high is None:
                after.append((counted_item(item, counted), (following, min(count + 1, most))))
            after.append((other_item(item, counted), (following, count)))
        else:
            after.append((item, (following, count)))
        after[:] = dict.fromkeys(one for one in after if one[0] != NEVER and possible(one[0]))
        waiting.extend(target for _, target in after)

    def accepts(state: tuple[int, int]) -> bool:
        return state[0] >= shape.min_items and state[1] >= counted.low

    alive = {state for state in steps if accepts(state)}
    grew = True
    while grew:
        more = {state for state, after in steps.items() if any(target in alive for _, target in after)} - alive
        grew = bool(more)
        alive |= more
    if start not in alive:
        return None
    numbers = {state: number for number, state in enumerate(state for state in steps if state in alive)}
    return Counter(
        tuple(
            tuple((item, numbers[target]) for item, target in steps[state] if target in alive) for state in numbers
        ),
        tuple(accepts(state) for state in numbers),
    )
