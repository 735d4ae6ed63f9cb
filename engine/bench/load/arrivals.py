"""Arrival patterns: when each conversation begins."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Literal

Pattern = Literal["poisson", "uniform", "burst", "closed"]

BURST = 8
"""Conversations that arrive at once in the pattern ``burst``."""


def _poisson(rng: random.Random, rate: float) -> Iterator[float]:
    clock = 0.0
    while True:
        yield clock
        clock += rng.expovariate(rate)


def _uniform(rng: random.Random, rate: float) -> Iterator[float]:
    index = 0
    while True:
        yield index / rate
        index += 1


def _burst(rng: random.Random, rate: float) -> Iterator[float]:
    """Poisson bursts: of `BURST` conversations each, at a rate that keeps the mean."""
    for start in _poisson(rng, rate / BURST):
        yield from [start] * BURST


def _closed(rng: random.Random, rate: float) -> Iterator[float]:
    """All are there at the start; the limit of concurrent conversations admits them."""
    while True:
        yield 0.0


_PATTERNS: Mapping[Pattern, Callable[[random.Random, float], Iterator[float]]] = {
    "poisson": _poisson,
    "uniform": _uniform,
    "burst": _burst,
    "closed": _closed,
}


def arrival_times(pattern: Pattern, rate: float, count: int, rng: random.Random) -> list[float]:
    """The arrival times of ``count`` conversations in seconds, ascending from 0.

    Args:
        pattern: the pattern.
        rate: conversations a second; a closed loop has none.
        count: the number of conversations.
        rng: draws the gaps.
    """
    return list(islice(_PATTERNS[pattern](rng, rate), count))
