"""``Linear``: what a projection is to the model, whatever format its weights are stored in."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Linear(Protocol):
    """``y = x @ weight.T + bias``.

    Those that run on a CPU are ``torch.nn.Module`` objects that TorchScript can compile, for `models.scripted`.

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
        """[T, in_features] -> [T, out_features]; the dtypes are `quant.compute_dtype`'s."""
        ...
