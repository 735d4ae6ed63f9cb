"""How many values meet demands, at least: whether arrays whose items have to differ can be as long as they must."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Final

from draftline.structured.json_schema.counting import counter, is_small
from draftline.structured.json_schema.shapes.arrays import ArrayShape
from draftline.structured.json_schema.shapes.demands import Demands
from draftline.structured.json_schema.shapes.numbers import NumberSet
from draftline.structured.json_schema.shapes.objects import ObjectShape
from draftline.structured.json_schema.shapes.strings import StringSet, parts_of, string_tree
from draftline.structured.json_schema.shapes.union import Shapes
from draftline.structured.regular import dfa

ENDLESS: Final = 10**9
"""Stands for this many values and more: no text holds them."""

_CHARACTERS: Final = 0x110000 - 0x800

_MAX_LENGTH: Final = 10_000
"""Longer texts are not counted."""


class Variety:
    """Counts values.

    Args:
        expand: the shapes of the values that meet demands.
    """

    def __init__(self, expand: Callable[[Demands], Shapes]) -> None:
        self._expand = expand
        self._known: dict[Demands, int] = {}

    def of(self, value: Demands) -> int:
        """A number of different values that meet demands; there may be more. At most ``ENDLESS``."""
        known = self._known.get(value)
        if known is None:
            self._known[value] = 0  # values that contain themselves count nothing inside
            shapes = self._expand(value)
            kinds = (shapes.null + len(shapes.booleans), _numbers(shapes.numbers), _strings(shapes.strings))
            largest = [
                max(map(self._array, shapes.arrays), default=0),
                max(map(self._object, shapes.objects), default=0),
            ]
            known = self._known[value] = min(sum(kinds) + sum(largest), ENDLESS)
        return known

    def _array(self, shape: ArrayShape) -> int:
        longest = ENDLESS if shape.max_items is None else shape.max_items
        length = max(shape.min_items, min(longest, len(shape.prefix) + 1))
        if shape.contains:
            return self._counted(shape)
        if shape.unique:
            return ENDLESS if longest and self.of(shape.item(0)) == ENDLESS else int(shape.min_items == 0)
        if shape.max_items is None and self.of(shape.rest) and all(self.of(one) for one in shape.prefix):
            return ENDLESS
        items = (self.of(shape.item(index)) for index in range(min(length, longest)))
        return min(_product(items) + (shape.min_items == 0), ENDLESS)

    def _counted(self, shape: ArrayShape) -> int:
        """Arrays with counted items. Those of one way through their automaton differ where an item does."""
        automaton = counter(shape, lambda value: self.of(value) > 0) if is_small(shape) else None
        if automaton is None:
            return 0
        count = int(automaton.accepts[0])
        layer = {0: 1}
        for _ in automaton.steps:
            after: dict[int, int] = {}
            for state, ways in layer.items():
                for item, target in automaton.steps[state]:
                    # Of values that run out, there may be none that differs from all others in the array.
                    choices = 0 if shape.unique and self.of(item) < ENDLESS else self.of(item)
                    after[target] = max(after.get(target, 0), min(ways * choices, ENDLESS))
            layer = {state: ways for state, ways in after.items() if ways}
            count = max(count, *(ways for state, ways in layer.items() if automaton.accepts[state]), 0)
            if count == ENDLESS or not layer:
                break
        return count

    def _object(self, shape: ObjectShape) -> int:
        if shape.some:
            return 0
        values = dict(shape.named)
        optional = sorted((self.of(value) for name, value in shape.named if name not in shape.required), reverse=True)
        missing = max(0, shape.min_members - len(shape.required))
        if missing > len(optional):
            return 0
        count = _product(self.of(values[name]) for name in sorted(shape.required))
        count = min(count * _product(iter(optional[:missing])), ENDLESS)
        if count and shape.max_members is None:
            unnamed = (_power(1 + self.of(members.value), _strings((members.names,))) for members in shape.others)
            count = min(count * _product(1 + each for each in optional[missing:]) * _product(unnamed), ENDLESS)
        return count


def _product(factors: Iterator[int]) -> int:
    product = 1
    for factor in factors:
        product = min(product * factor, ENDLESS)
        if not product:
            break
    return product


def _power(base: int, exponent: int) -> int:
    return base**exponent if base == 1 or exponent < ENDLESS.bit_length() else ENDLESS


def _numbers(sets: tuple[NumberSet, ...]) -> int:
    points = {one.low for one in sets if one.is_point() and not one.is_empty()}
    return len(points) + max((_of_numbers(one) for one in sets if not one.is_point()), default=0)


def _of_numbers(numbers: NumberSet) -> int:
    if numbers.not_steps:
        return 0
    if numbers.step is None:
        return ENDLESS
    low, high = numbers.integral_bounds()
    return ENDLESS if low is None or high is None else max(0, min(high - low + 1, ENDLESS))


def _strings(sets: tuple[StringSet, ...]) -> int:
    return max(map(_of_strings, sets), default=0)


def _of_strings(strings: StringSet) -> int:
    if strings.only is not None:
        return len(strings.only)
    if not strings.patterns and not strings.not_patterns:
        longest = 3 if strings.max_length is None else min(strings.max_length, 3)
        count = int(math.pow(_CHARACTERS, longest)) if longest >= min(strings.min_length, 3) else 0
        return max(0, min(count, ENDLESS) - len(strings.without))
    try:
        return _words(dfa.conjunction(list(parts_of(strings))), strings.min_length, strings.max_length)
    except dfa.TooComplexError:
        return 0


@functools.lru_cache(maxsize=1024)
def never_runs_out(strings: StringSet) -> bool:
    """Whether endlessly many strings of a set go on from each beginning of one. False may mean that no proof was found."""
    if strings.only is not None or strings.max_length is not None:
        return False
    if not strings.patterns and not strings.not_patterns:
        return True
    try:
        automaton = dfa.build(string_tree(strings))
    except dfa.TooComplexError:
        return False
    alive = set(dfa.alive_states(automaton))
    return all(not alive.isdisjoint(automaton.steps[state]) for state in alive)


def _words(automaton: dfa.Dfa, shortest: int, longest: int | None) -> int:
    """The number of texts of an automaton within bounds on their length; there may be more of them."""
    alive = set(dfa.alive_states(automaton))
    ends = (*automaton.starts[1:], 0x110000)
    widths: dict[int, int] = {}
    for start, end, letter in zip(automaton.starts, ends, automaton.letters, strict=True):
        if not 0xD800 <= start <= 0xDFFF:
            widths[letter] = widths.get(letter, 0) + end - start
    layer = {0: 1} if 0 in alive else {}
    total = 0
    # A text as long as there are states goes through one of them twice.
    lengths = shortest + len(automaton.steps) if longest is None else longest + 1
    for length in range(min(lengths, _MAX_LENGTH)):
        if length >= shortest:
            total += sum(count for state, count in layer.items() if automaton.accepts[state])
        after: dict[int, int] = {}
        for state, count in layer.items():
            for letter, width in widths.items():
                target = automaton.steps[state][letter]
                if target in alive:
                    after[target] = min(after.get(target, 0) + count * width, ENDLESS)
        layer = after
        if total >= ENDLESS or not layer:
            return min(total, ENDLESS)
    return ENDLESS if longest is None and lengths <= _MAX_LENGTH else total
