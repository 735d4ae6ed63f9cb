"""The residual stream between a model's layers, with the next norm prepared where that saves a launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


@dataclass(frozen=True, slots=True)
class PreparedNorm:
    """The RMSNorm of a residual stream except for one factor a row, computed by the kernel that wrote the stream.

    A separate norm is one more launch that waits for memory. The kernel before it has the values in registers, and the
    kernel after it multiplies each row's results by ``1 / sqrt(squares.sum(1) / N + eps)``.

    Attributes:
        weight: [N], the norm's; no other norm is prepared.
        scaled: [T, N], the stream times that weight.
        squares: [T, P] float32: sums of squares of P parts of each row of the stream.
    """

    weight: Tensor
    scaled: Tensor
    squares: Tensor


class Residual(NamedTuple):
    """A residual stream.

    Attributes:
        values: [T, N].
        prepared: a norm of the stream, or None.
    """

    values: Tensor
    prepared: PreparedNorm | None = None

    def prepared_for(self, norm: Tensor) -> PreparedNorm | None:
        """The prepared norm, if it is the one with this weight."""
        return self.prepared if self.prepared is not None and self.prepared.weight is norm else None
