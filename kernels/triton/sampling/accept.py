"""Exact verification on the device: accept drafts while they equal the samples, and commit the accepted tokens."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.slots import SampleRows, SlotTable


@triton.jit(do_not_specialize_on_alignment=["starts"])  # part of a graph's inputs
def _accept_kernel(
    tokens: tl.tensor,
    row_slots: tl.tensor,
    row_positions: tl.tensor,
    starts: tl.tensor,
    slot_tokens: tl.tensor,
    lengths: tl.tensor,
    accepted: tl.tensor,
    tokens_stride: int,
    MAX_SAMPLES: tl.constexpr,
) -> None:
    """One program a row of the step: at most MAX_SAMPLES consecutive sampled positions."""
    row = tl.program_id(0)
    start = tl.load(starts + row)
    count = tl.load(starts + row + 1) - start
    if count == 0:
        tl.store(accepted + row, 0)
        return
    slot = tl.load(row_slots + start)
    position = tl.load(row_positions + start)
    index = tl.arange(0, MAX_SAMPLES)
    sampled = tl.load(tokens + start + index, mask=index < count, other=-1)
    target = slot_tokens + slot * tokens_stride + position + index
    draft = tl.load(target, mask=index < count - 1, other=-2)
    # The first position whose sample is not its draft; the last one has no draft.
    parted = tl.min(tl.where((index < count) & (sampled != draft.to(tl.int64)), index, MAX_SAMPLES), axis=0)
    length = parted + 1
    tl.store(target, sampled.to(tl.int32), mask=index < length)
    tl.store(lengths + slot, (position + length).to(tl.int32))
    tl.store(accepted + row, length)


def accept(tokens: Tensor, rows: SampleRows, starts: Tensor, max_samples: int, table: SlotTable) -> Tensor:
    """``Ops.accept`` by Triton kernels."""
    count = starts.shape[0] - 1
    accepted = torch.empty(count, dtype=torch.int32, device=tokens.device)
    if count:
        _accept_kernel[(count,)](
            tokens,
            rows.slots,
            rows.positions,
            starts,
            table.tokens,
            table.lengths,
            accepted,
            table.tokens.stride(0),
            MAX_SAMPLES=triton.next_power_of_2(max_samples),
            num_warps=1,
        )
    return accepted
