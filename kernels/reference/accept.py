"""Exact verification, in numpy: torch's operations on so few numbers take longer."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from draftline.kernels.slots import SampleRows, SlotTable


def accept(tokens: Tensor, rows: SampleRows, starts: Tensor, max_samples: int, table: SlotTable) -> Tensor:
    """As ``Ops.accept`` says."""
    begins, device = starts.numpy(force=True), starts.device
    counts = np.diff(begins)
    accepted = np.zeros_like(counts)
    (sampling,) = counts.nonzero()
    if not len(sampling):
        return torch.from_numpy(accepted).to(device)
    first, counts = begins[sampling].astype(np.int64)[:, None], counts[sampling, None]
    slot, position = rows.slots.numpy(force=True)[first], rows.positions.numpy(force=True)[first]
    index = np.arange(max_samples)
    sampled = tokens.numpy(force=True)[np.minimum(first + index, len(tokens) - 1)]
    columns = np.minimum(position + index, table.tokens.shape[1] - 1)

    def tensor(values: np.ndarray, dtype: type[np.generic] = np.int64) -> Tensor:
        return torch.from_numpy(values.astype(dtype, copy=False)).to(device)

    drafts = table.tokens[tensor(slot), tensor(columns)].numpy(
        force=True
    )  # not all of the table, which a GPU would copy
    agree = (sampled == drafts) & (index < counts - 1)
    length = agree.cumprod(axis=1).sum(axis=1) + 1
    accepted[sampling] = length
    kept = index < length[:, None]
    table.tokens[tensor(slot.repeat(length)), tensor(columns[kept])] = tensor(sampled[kept], np.int32)
    table.lengths[tensor(slot[:, 0])] = tensor(position[:, 0] + length, np.int32)
    return tensor(accepted, accepted.dtype.type)
