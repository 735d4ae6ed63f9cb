"""A part of a parameter grid that has every pair of values; the rest of the grid runs with ``-m slow``."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations, product
from math import inf
from typing import Any

import pytest
from _pytest.mark import ParameterSet

MAX_PAIRS = 30
"""Of tests on a GPU, which compile kernels: see `covering`."""


def covering(*factors: Mapping[str, Any], group: str = "", max_pairs: float = inf) -> list[ParameterSet]:
    """All combinations of the factors' values, by name; those that are not needed for every pair are marked ``slow``.

    Args:
        factors: name to value, of each parameter; a tuple is the values of several parameters.
        group: a name; then combinations with the same first value run in one process, one after the other.
        max_pairs: of two factors with more pairs than this, every second pair is enough: each value meets half of the other's.
    """
    needed = _cover(list(product(*factors)), _left_out(factors, max_pairs))
    grid = []
    for names in product(*factors):
        values: list[Any] = []
        for factor, name in zip(factors, names, strict=True):
            values += factor[name] if isinstance(factor[name], tuple) else (factor[name],)
        marks = [] if names in needed else [pytest.mark.slow]
        if group:
            marks.append(pytest.mark.xdist_group(f"{group}-{names[0]}"))
        grid.append(pytest.param(*values, id="-".join(names), marks=marks))
    return grid


Pair = tuple[tuple[int, str], ...]
"""Two factors by their positions, and a value of each."""


def _left_out(factors: tuple[Mapping[str, Any], ...], max_pairs: float) -> set[Pair]:
    """Every second pair, as the white fields of a chess board, of factors with many."""
    return {
        ((one, first), (two, second))
        for (one, mine), (two, its) in combinations(enumerate(factors), 2)
        if len(mine) * len(its) > max_pairs
        for (row, first), (column, second) in product(enumerate(mine), enumerate(its))
        if (row + column) % 2
    }


def _cover(grid: list[tuple[str, ...]], left_out: set[Pair]) -> set[tuple[str, ...]]:
    """A few of the combinations that have all other pairs: again and again the one with most pairs that none has yet."""
    pairs = {names: set(combinations(enumerate(names), 2)) - left_out for names in grid}
    left = set().union(*pairs.values())
    chosen = set()
    while left:
        best = max(grid, key=lambda names: len(pairs[names] & left))
        chosen.add(best)
        left -= pairs[best]
    return chosen
