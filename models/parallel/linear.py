"""The parts of a model whose results the ranks exchange: projections that are summed or joined, and the embedding."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from draftline.kernels.collectives import Collectives
from draftline.kernels.ops import Ops
from draftline.quant.linear import Linear


class SummedLinear(Linear):
    """A projection whose input channels are divided between the ranks. See `Linear`."""

    def __init__(self, part: Linear, bias: Tensor | None, collectives: Collectives) -> None:
        """``part`` has this rank's channels and no bias; ``bias`` [out_features] is the same on every rank, or None."""
        self._part, self._bias, self._collectives = part, bias, collectives
        self.in_features, self.out_features = part.in_features, part.out_features
        self.format, self.nbytes = part.format, part.nbytes

    @override
    def __call__(self, x: Tensor) -> Tensor:
        return self._collectives.sum_add(self._part(x), self._bias, None)

    @override
    def linear(self, x: Tensor, ops: Ops) -> Tensor:
        return self._collectives.sum_add(self._part.linear(x, ops), self._bias, None)

    @override
    def norm_linear(self, x: Tensor, norm: Tensor, eps: float, ops: Ops) -> Tensor:
        raise NotImplementedError("no rank has the whole input, so none has its norm")

    @override
    def norm_swiglu(self, x: Tensor, norm: Tensor, eps: float, ops: Ops) -> Tensor:
        raise NotImplementedError("no rank has the whole input, so none has its norm")

    @override
    def linear_add(self, x: Tensor, residual: Tensor, ops: Ops) -> Tensor:
        return self._collectives.sum_add(self._part.linear(x, ops), self._bias, residual)


class JoinedLinear(Linear):
    """A projection whose outputs are divided between the ranks. See `Linear`."""

    def __init__(self, part: Linear, widths: Sequence[int], collectives: Collectives) -> None:
        """``part`` has ``widths[rank]`` outputs."""
        self._part, self._join = part, collectives.joiner(widths)
        self.in_features, self.out_features = part.in_features, sum(widths)
        self.format, self.nbytes = part.format, part.nbytes

    @override
    def __call__(self, x: Tensor) -> Tensor:
        return self._join(self._part(x))

    @override
    def linear(self, x: Tensor, ops: Ops) -> Tensor:
        return self._join(self._part.linear(x, ops))

    @override
    def norm_linear(self, x: Tensor, norm: Tensor, eps: float, ops: Ops) -> Tensor:
        return self._join(self._part.norm_linear(x, norm, eps, ops))

    @override
    def norm_swiglu(self, x: Tensor, norm: Tensor, eps: float, ops: Ops) -> Tensor:
        raise NotImplementedError("gates and values would be joined in another order")

    @override
    def linear_add(self, x: Tensor, residual: Tensor, ops: Ops) -> Tensor:
        return residual + self.linear(x, ops)


class Embedding:
    """Token embeddings.

    Attributes:
        table: [vocab, hidden], the rows that this process has.
    """

    def __init__(self, table: Tensor) -> None:
        self.table = table

    def __call__(self, token_ids: Tensor, dtype: torch.dtype, ops: Ops) -> Tensor:
        """[T] int64 -> [T, hidden] in ``dtype``."""
        return ops.take_rows(self.table, token_ids).to(dtype)


class PartialEmbedding(Embedding):
    """Token embeddings of which this rank has some rows. Just one rank has a token's, so its sum is exact.

    Attributes:
        table: this rank's rows, and a row of zeros, which other ranks' tokens have here.
    """

    def __init__(self, table: Tensor, first: int, vocabulary: int, collectives: Collectives) -> None:
        """Embeddings of ``vocabulary`` tokens, ``table`` having those from ``first`` on."""
        super().__init__(F.pad(table, (0, 0, 0, 1)))
        count = table.shape[0]
        # Looked up, since each operation on the ids would be a launch.
        self._rows = torch.full((vocabulary,), count, device=table.device)
        self._rows[first : first + count] = torch.arange(count, device=table.device)
        self._collectives = collectives

    @override
    def __call__(self, token_ids: Tensor, dtype: torch.dtype, ops: Ops) -> Tensor:
        return self._collectives.sum_add(super().__call__(self._rows[token_ids], dtype, ops), None, None)
