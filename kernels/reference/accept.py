"""Exact verification in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from draftline.kernels.slots import SampleRows, SlotTable


def accept(tokens: Tensor, rows: SampleRows, starts: Tensor, max_samples: int, table: SlotTable) -> Tensor:
    """``Ops.accept`` in plain torch."""
    counts = starts.diff()
    accepted = torch.zeros_like(counts)
    sampling = counts > 0
    if not sampling.any():
        return accepted
    first, counts = starts[:-1][sampling].long(), counts[sampling]
    slot, position = rows.slots[first], rows.positions[first]
    index = torch.arange(max_samples, device=tokens.device)
    real = index < counts[:, None]
    sampled = tokens[(first[:, None] + index).clamp(max=tokens.shape[0] - 1)]
    columns = (position[:, None] + index).clamp(max=table.tokens.shape[1] - 1)
    drafts = table.tokens[slot[:, None], columns]
    agree = (sampled == drafts) & (index < counts[:, None] - 1)
    length = agree.long().cumprod(1).sum(1) + 1
    kept = real & (index < length[:, None])
    table.tokens[slot[:, None].expand_as(kept)[kept], columns[kept]] = sampled[kept].to(torch.int32)
    table.lengths[slot] = (position + length).to(torch.int32)
    accepted[sampling] = length.to(accepted.dtype)
    return accepted
