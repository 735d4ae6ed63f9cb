"""``Linear``: what a projection is to the model, whatever format its weights are stored in."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Linear(Protocol):
    """``y = x @ weight.T + bias``.

    Attributes:
        in_features: width of the input.
        out_features: width of the output.
        format: the format the weights are kept and run in, for reports (``int4``, ``float16``, …).
        nbytes: memory that the weights take.
    """

    in_features: int
    out_features: int
    format: str
    nbytes: int

    def __call__(self, x: Tensor) -> Tensor:
        """[T, in_features] -> [T, out_features], in the dtype of ``x`` unless the class says otherwise."""
        ...
