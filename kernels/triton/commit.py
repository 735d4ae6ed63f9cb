"""Sampled tokens into the slot table, where the next step finds them: one small launch."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.slots import SampleRows, SlotTable

_BLOCK = 128


@triton.jit(do_not_specialize=["count"])
def _commit_kernel(
    tokens: tl.tensor,
    row_slots: tl.tensor,
    row_positions: tl.tensor,
    slot_tokens: tl.tensor,
    tokens_stride: int,
    count: int,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    position = tl.load(row_positions + row, mask=row < count, other=-1)
    real = position >= 0
    slot = tl.load(row_slots + row, mask=real, other=0)
    token = tl.load(tokens + row, mask=real, other=0)
    tl.store(slot_tokens + slot * tokens_stride + position, token.to(tl.int32), mask=real)


def commit(tokens: Tensor, rows: SampleRows, slots: SlotTable) -> None:
    """See ``Ops.commit``."""
    count = tokens.shape[0]
    if not count:
        return
    _commit_kernel[(triton.cdiv(count, _BLOCK),)](
        tokens,
        rows.slots,
        rows.positions,
        slots.tokens,
        slots.tokens.stride(0),
        count,
        BLOCK=_BLOCK,
        num_warps=1,
    )
