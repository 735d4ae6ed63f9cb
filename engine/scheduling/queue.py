"""Sequences in queue order: by ``order``, and by arrival where that is equal."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from draftline.engine.request.sequence import Sequence


def rank(sequence: Sequence) -> tuple[float, int]:
    """The place in the queue. It never changes, so neither does the order between two sequences."""
    return sequence.order, sequence.arrival


class SequenceQueue:
    """A sorted list of sequences, each in it at most once."""

    def __init__(self) -> None:
        """An empty queue."""
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        """How many are in it."""
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        """From first to last."""
        return iter(self._sequences)

    def __reversed__(self) -> Iterator[Sequence]:
        """From last to first."""
        return reversed(self._sequences)

    def __getitem__(self, index: int) -> Sequence:
        """The sequence at a place in the order; -1 is the last."""
        return self._sequences[index]

    def __contains__(self, sequence: Sequence) -> bool:
        """Whether this very sequence is in the queue, found by its place."""
        at = bisect_left(self._sequences, rank(sequence), key=rank)
        return at < len(self._sequences) and self._sequences[at] is sequence

    def add(self, sequence: Sequence) -> None:
        """Put a sequence in its place."""
        insort(self._sequences, sequence, key=rank)

    def remove(self, sequence: Sequence) -> None:
        """Take out a sequence that is in the queue."""
        assert sequence in self, f"{sequence.name} is not in this queue"
        del self._sequences[bisect_left(self._sequences, rank(sequence), key=rank)]
