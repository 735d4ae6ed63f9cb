"""``Collectives``: what the ranks of one model exchange during a step. A rank is one process with one device.

Every rank calls the same methods in the same order. `ALONE` is the form of a single process, in which nothing is
exchanged. `reference.collectives` exchanges over gloo between CPU processes, `triton.collectives` between the GPUs of a
host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor
from typing_extensions import override

Join = Callable[[Tensor], Tensor]
"""From this rank's columns to those of all ranks. Every rank calls it."""


class Collectives(Protocol):
    """Exchanges between ranks, in stream order and, on a GPU, without waiting for the device.

    Attributes:
        rank: this process's number, from 0.
        size: the number of ranks.
    """

    rank: int
    size: int

    def sum_add(self, partial: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
        """``residual + (sum of every rank's partial + bias)``, the same bits on every rank: [T, N] -> [T, N].

        The partials are added in float32 and in the order of the ranks, so a row's bits do not depend on the other
        rows. The result has the type of ``partial``.

        Args:
            partial: [T, N], this rank's part of the sum.
            bias: [N], the same on every rank, or None.
            residual: [T, N], the same on every rank, or None. It may be written over.
        """
        ...

    def joiner(self, widths: Sequence[int]) -> Join:
        """What joins all ranks' columns in the order of the ranks: [T, widths[rank]] -> [T, sum(widths)]."""
        ...

    def spread(self, values: Tensor) -> Tensor:
        """Rank 0's ``values``, [K] int64, on every rank; the values of other ranks only tell K."""
        ...


class Alone(Collectives):
    """The collectives of a single process."""

    rank = 0
    size = 1

    @override
    def sum_add(self, partial: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
        result = partial if bias is None else partial + bias
        return result if residual is None else residual + result

    @override
    def joiner(self, widths: Sequence[int]) -> Join:
        return lambda part: part

    @override
    def spread(self, values: Tensor) -> Tensor:
        return values


ALONE = Alone()
