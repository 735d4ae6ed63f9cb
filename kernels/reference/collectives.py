"""``ProcessCollectives``: collectives between processes in plain torch, over a process group. The path of CPUs.

A sum gathers all partials and adds them in the order of the ranks. gloo's own sums add in an order that depends on the
number of elements, so a row's bits would depend on the other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import BroadcastOptions, ProcessGroup
from typing_extensions import override

from draftline.kernels.collectives import Collectives, Join


class ProcessCollectives(Collectives):
    """Collectives over a process group of CPU tensors."""

    def __init__(self, group: ProcessGroup, begun: Callable[[], None]) -> None:
        """``group`` has all ranks; ``begun`` is called when they begin to gather."""
        self.rank, self.size = group.rank(), group.size()
        self._group, self._begun = group, begun

    @override
    def sum_add(self, partial: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
        total, *others = self._gathered(partial)
        total = total.float()
        for other in others:
            total = total + other.float()
        if bias is not None:
            total = total + bias.float()
        if residual is not None:
            total = residual.float() + total
        return total.to(partial.dtype)

    @override
    def joiner(self, widths: Sequence[int]) -> Join:
        def join(part: Tensor) -> Tensor:
            # gloo gathers tensors of one shape.
            parts = self._gathered(F.pad(part, (0, max(widths) - part.shape[1])))
            return torch.cat([one[:, :width] for one, width in zip(parts, widths, strict=True)], dim=1)

        return join

    @override
    def spread(self, values: Tensor) -> Tensor:
        options = BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        if values.numel():
            self._group.broadcast([values], options).wait()
        return values

    def _gathered(self, tensor: Tensor) -> list[Tensor]:
        """Every rank's tensor, in the order of the ranks."""
        self._begun()
        tensor = tensor.contiguous()
        gathered = [torch.empty_like(tensor) for _ in range(self.size)]
        if tensor.numel():  # a step that decides no token has no logits
            self._group.allgather([gathered], [tensor]).wait()
        return gathered
