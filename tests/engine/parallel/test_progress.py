"""Which rank the others wait for: it has begun fewer exchanges, and does not run."""

from __future__ import annotations

import numpy as np
import pytest

from draftline.engine.parallel.progress import Progress, Stalls


class Ranks:
    """Three ranks under watch, and the clock of the watch."""

    def __init__(self) -> None:
        self.counts = np.zeros(3, np.int64)
        self.ranks = [Progress(self.counts, rank) for rank in range(3)]
        self.running: set[int] = set()
        self.now = 0.0
        self._stalls = Stalls(self.counts, self.running.__contains__, idle_s=4.0, busy_s=30.0, clock=lambda: self.now)

    def advance(self, *ranks: int) -> None:
        for rank in ranks:
            self.ranks[rank].advance()

    def watch(self, seconds: float) -> tuple[int, float] | None:
        end = self.now + seconds
        while self.now < end:
            self.now += 0.25
            found = self._stalls.find()
            if found is not None:
                return found
        return None


def test_nobody_waits_for_idle_ranks() -> None:
    ranks = Ranks()
    ranks.advance(0, 1, 2)
    assert ranks.watch(100) is None


def test_a_rank_that_others_wait_for_has_stalled() -> None:
    ranks = Ranks()
    ranks.advance(0, 1)
    assert ranks.watch(4) is None
    rank, waited = ranks.watch(1) or (0, 0.0)
    assert (rank, waited) == (2, pytest.approx(4.25))


def test_others_wait_for_rank_0_as_long_as_it_takes() -> None:
    """Its own thread would have to end the engine."""
    ranks = Ranks()
    ranks.advance(1, 2)
    assert ranks.watch(100) is None


def test_slow_ranks_have_not_stalled() -> None:
    ranks = Ranks()
    for _ in range(20):
        ranks.advance(0)
        assert ranks.watch(3) is None
        ranks.advance(1, 2)
        assert ranks.watch(3) is None


def test_a_rank_that_runs_has_more_time() -> None:
    ranks = Ranks()
    ranks.advance(0)
    ranks.advance(2)
    ranks.running.add(1)
    assert ranks.watch(29) is None
    rank, _ = ranks.watch(2) or (0, 0.0)
    assert rank == 1


def test_a_rank_that_ran_lately_has_not_stalled() -> None:
    ranks = Ranks()
    ranks.advance(0, 2)
    ranks.running.add(1)
    assert ranks.watch(10) is None
    ranks.running.clear()
    assert ranks.watch(4) is None
    assert ranks.watch(1) is not None
