"""A part of a parameter grid that has every pair of values; the rest of the grid runs with ``-m slow``."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations, product
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def covering(*factors: Mapping[str, Any], group: str = "") -> list[ParameterSet]:
    """All combinations of the factors' values, by name; those that are not needed for every pair are marked ``slow``.

    Each pair of values of the first two factors runs once, with values of the others that were not seen together yet.

    Args:
        factors: name to value, of each parameter; a tuple is the values of several parameters.
        group: a name; then combinations with the same first value run in one process, one after the other.
    """
    seen: set[tuple[tuple[int, str], ...]] = set()
    grid = []
    for first in product(*factors[:2]):
        others = [(*first, *rest) for rest in product(*factors[2:])]
        kept = max(others, key=lambda names: len(_pairs(names) - seen))
        seen |= _pairs(kept)
        for names in others:
            values: list[Any] = []
            for factor, name in zip(factors, names, strict=True):
                values += factor[name] if isinstance(factor[name], tuple) else (factor[name],)
            marks = [] if names == kept else [pytest.mark.slow]
            if group:
                marks.append(pytest.mark.xdist_group(f"{group}-{names[0]}"))
            grid.append(pytest.param(*values, id="-".join(names), marks=marks))
    return grid


def _pairs(names: tuple[str, ...]) -> set[tuple[tuple[int, str], ...]]:
    return set(combinations(enumerate(names), 2))
