"""Sequences in queue order: by ``order``, and by arrival where that is equal. Waiting and running ones are kept so."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from draftline.engine.request.sequence import Sequence


def rank(sequence: Sequence) -> tuple[float, int]:
    """The sort key of the queue, smaller first. A sequence's rank never changes."""
    return sequence.order, sequence.arrival


class PriorityQueue:
    """A sorted list of sequences, each in it at most once."""

    def __init__(self) -> None:
        """Create an empty queue."""
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        """The number of sequences."""
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        """Iterate from first to last."""
        return iter(self._sequences)

    def __reversed__(self) -> Iterator[Sequence]:
        """Iterate from last to first."""
        return reversed(self._sequences)

    def __getitem__(self, index: int) -> Sequence:
        """The sequence at an index; -1 is the last."""
        return self._sequences[index]

    def __contains__(self, sequence: Sequence) -> bool:
        """Whether this very sequence is in the queue. Takes a binary search by rank."""
        index = bisect_left(self._sequences, rank(sequence), key=rank)
        return index < len(self._sequences) and self._sequences[index] is sequence

    def add(self, sequence: Sequence) -> None:
        """Insert a sequence by its rank."""
        insort(self._sequences, sequence, key=rank)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence, which must be in the queue."""
        assert sequence in self, f"{sequence.name} is not in this queue"
        del self._sequences[bisect_left(self._sequences, rank(sequence), key=rank)]
