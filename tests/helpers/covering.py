"""A part of a parameter grid that has every pair of values; the rest of the grid runs with ``-m slow``."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations, product
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def covering(*factors: Mapping[str, Any], group: str = "") -> list[ParameterSet]:
    """All combinations of the factors' values, by name; those that are not needed for every pair are marked ``slow``.

    Args:
        factors: name to value, of each parameter; a tuple is the values of several parameters.
        group: a name; then combinations with the same first value run in one process, one after the other.
    """
    needed = _cover(list(product(*factors)))
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


def _cover(grid: list[tuple[str, ...]]) -> set[tuple[str, ...]]:
    """A few of the combinations that have all pairs: again and again the one with most pairs that none has yet."""
    pairs = {names: set(combinations(enumerate(names), 2)) for names in grid}
    left = set().union(*pairs.values())
    chosen = set()
    while left:
        best = max(grid, key=lambda names: len(pairs[names] & left))
        chosen.add(best)
        left -= pairs[best]
    return chosen
