"""Rows of integers, told apart by keys of 64 bits. Every key is checked: two rows count as equal only if they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]

Indices = npt.NDArray[np.int64]


def mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A one-to-one function of 64 bits whose results look random (the finaliser of SplitMix64, Steele et al. 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


_FACTORS = mixed(np.arange(1, 1 << 14, dtype=np.uint64)).view(np.int64) | 1


def equal_rows(rows: npt.NDArray[np.integer]) -> tuple[Indices, Indices]:
    """The index of the first of each set of equal rows, and the set of each row."""
    width = rows.shape[1]
    factors = _FACTORS if width <= len(_FACTORS) else mixed(np.arange(1, 1 + width, dtype=np.uint64)).view(np.int64) | 1
    keys = rows.astype(np.int64) @ factors[:width]
    _, first, kind = np.unique(keys, return_index=True, return_inverse=True)
    kind = kind.reshape(-1)
    if not np.array_equal(rows[first][kind], rows):  # two different rows have one key: rare, but possible
        _, first, kind = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return first, kind.reshape(-1)


def spans(first: Indices, counts: Indices) -> Indices:
    """The indices ``first[i], first[i] + 1, …``, ``counts[i]`` of them, for each i in turn."""
    ends = np.cumsum(counts)
    return np.repeat(first - (ends - counts), counts) + np.arange(ends[-1] if len(ends) else 0)


@dataclass(frozen=True, slots=True)
class SparseRows:
    """Rows of moves. Row r leads from ``source[i]`` to ``target[i]`` for i in ``first[r]:first[r + 1]``, sources ascending.

    From all other states it leads nowhere.
    """

    first: Indices
    source: Ints
    target: Ints

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.first) - 1

    def take(self, rows: Indices) -> SparseRows:
        """Some of the rows."""
        counts = np.diff(self.first)[rows]
        at = spans(self.first[rows], counts)
        return SparseRows(offsets(counts), self.source[at], self.target[at])

    @staticmethod
    def joined(parts: list[SparseRows]) -> SparseRows:
        """The rows of all parts, in order."""
        counts = np.concatenate([np.diff(part.first) for part in parts])
        source = np.concatenate([part.source for part in parts])
        return SparseRows(offsets(counts), source, np.concatenate([part.target for part in parts]))

    def distinct(self) -> tuple[SparseRows, Indices]:
        """The distinct rows, an empty row always first, and which of them each row is."""
        counts = np.diff(self.first)
        some = np.flatnonzero(counts)
        moves = (self.source.astype(np.uint64) << np.uint64(32)) | self.target.astype(np.uint64)
        salt = np.uint64(0)
        while True:
            keys = np.add.reduceat(mixed(moves ^ salt), self.first[some]) if len(some) else moves
            _, chosen, kind = np.unique(keys, return_index=True, return_inverse=True)
            kind = kind.reshape(-1)
            like = some[chosen][kind]
            if np.array_equal(counts[like], counts[some]) and np.array_equal(
                moves[spans(self.first[like], counts[some])], moves
            ):
                break
            salt += np.uint64(0x9E3779B97F4A7C15)  # two different rows have one key: rare, but possible
        which = np.zeros(len(self), np.int64)
        which[some] = 1 + kind
        kept = self.take(some[chosen])
        return SparseRows(np.append(0, kept.first), kept.source, kept.target), which


def offsets(counts: Indices) -> Indices:
    """Where each of consecutive spans begins, and where the last one ends."""
    return np.append(0, np.cumsum(counts))
