"""Arrays with counted items (``contains``), as a small automaton over kinds of items."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from draftline.structured.json_schema.shapes.arrays import ArrayShape
from draftline.structured.json_schema.shapes.demands import NEVER, Demand, Demands, both

MAX_STEPS: Final = 4_000

_State = tuple[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Counter:
    """An automaton. State 0 is the start; an accepting state can be reached from every state.

    Attributes:
        steps: for each state, the demands on the next item and the state after it.
        accepts: for each state, whether the array may end there.
    """

    steps: tuple[tuple[tuple[Demands, int], ...], ...]
    accepts: tuple[bool, ...]


def kinds(shape: ArrayShape, index: int) -> Iterator[tuple[Demands, tuple[int, ...]]]:
    """The kinds of items at an index: the demands on an item, and the counts that it adds to.

    For a count with an upper bound, an item is counted exactly if it meets the demands of the count. Without one, such
    an item may also go uncounted.
    """
    choices = [(True, False) if index >= one.start else (False,) for one in shape.contains]
    for counted in itertools.product(*choices):
        item = shape.item(index)
        for one, counts in zip(shape.contains, counted, strict=True):
            if counts:
                item = both(item, one.value)
            elif one.high is not None and index >= one.start:
                (demand,) = one.value
                item = both(item, frozenset([Demand(demand.location, not demand.holds)]))
        if item != NEVER:
            yield item, tuple(int(counts) for counts in counted)


def all_kinds(shape: ArrayShape) -> Iterator[Demands]:
    """The demands of every kind of item at any index."""
    for index in range(_last_index(shape) + 1):
        if index == 0 or index <= len(shape.prefix) or any(index == one.start for one in shape.contains):
            yield from (item for item, _ in kinds(shape, index))


def is_small(shape: ArrayShape) -> bool:
    """Whether the automaton fits the budget."""
    states = _last_index(shape) + 1
    for one in shape.contains:
        states *= 2 * ((one.low if one.high is None else one.high) + 1)
    return states <= MAX_STEPS


def _last_index(shape: ArrayShape) -> int:
    """An index from which on the number of items makes no difference."""
    starts = [one.start for one in shape.contains]
    return max(len(shape.prefix), *starts, shape.min_items, shape.max_items or 0)


def counter(shape: ArrayShape, possible: Callable[[Demands], bool]) -> Counter | None:
    """The automaton of an array with counted items; None if there is no such array.

    Args:
        shape: has counts in ``contains``, and `is_small`.
        possible: whether any value meets given demands.
    """
    last = _last_index(shape)
    bounds = [one.low if one.high is None else one.high for one in shape.contains]
    start: _State = (0, tuple(0 for _ in bounds))
    steps: dict[_State, list[tuple[Demands, _State]]] = {}
    waiting = [start]
    for state in waiting:
        if state in steps:
            continue
        after: dict[tuple[Demands, _State], None] = {}
        index, counts = state
        if shape.max_items is None or index < shape.max_items:
            for item, added in kinds(shape, index):
                sums = tuple(count + one for count, one in zip(counts, added, strict=True))
                over = any(
                    total > bound and one.high is not None
                    for total, bound, one in zip(sums, bounds, shape.contains, strict=True)
                )
                if not over and possible(item):
                    capped = tuple(min(total, bound) for total, bound in zip(sums, bounds, strict=True))
                    after[item, (min(index + 1, last), capped)] = None
        steps[state] = list(after)
        waiting.extend(target for _, target in after)

    def accepts(state: _State) -> bool:
        enough = all(count >= one.low for count, one in zip(state[1], shape.contains, strict=True))
        return enough and state[0] >= shape.min_items

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
        tuple(tuple((item, numbers[target]) for item, target in steps[state] if target in alive) for state in numbers),
        tuple(accepts(state) for state in numbers),
    )
