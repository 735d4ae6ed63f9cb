"""The parts of histories that several programs share: one kernel a step, before the forward pass.

Where each row has a program, or a few, most rows of a large batch wait for the memory. But a row that is much longer than the others is
still read by its few programs when the rest of the device has nothing left to do. So histories are divided into parts, and there are as
many programs as parts.

Of wide heads, only long histories have parts. A history is long if reading it takes one program half of the time, or more, that reading
all histories takes the device. Of narrow heads, all have: their programs are small and many.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl

from draftline.kernels.batch import Batch, HistoryParts
from draftline.kernels.limits import LEAST_LONG_HISTORY
from draftline.kernels.triton.attention.parts_plan import LEAST_PART, division
from draftline.kernels.triton.attention.plan import longest_short
from draftline.kernels.triton.device import DeviceLimits
from draftline.kernels.triton.overlap import launch_options, wait_unfollowed

_BLOCK = 512


@triton.jit(
    do_not_specialize=[
        "num_rows",
        "num_arrived",
        "longest",
        "ahead",
        "kv_heads",
        "num_sms",
        "max_parts",
        "least_long",
        "least_part",
    ]
)
def _divide_kernel(
    query_starts: tl.tensor,
    context_lens: tl.tensor,
    starts: tl.tensor,
    rows: tl.tensor,
    length: tl.tensor,
    arrived: tl.tensor,
    num_rows: int,
    num_arrived: int,
    longest: int,
    ahead: int,
    kv_heads: int,
    num_sms: int,
    max_parts: int,
    least_long: int,
    least_part: int,
    EVERY: tl.constexpr,
    ROUNDED_TO: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """One program. Rows of more than ``longest`` query tokens are prompt chunks. With EVERY, all histories have parts."""
    wait_unfollowed(OVERLAP)
    lane = tl.arange(0, BLOCK)
    for base in range(0, num_arrived, BLOCK):
        tl.store(arrived + base + lane, 0, mask=base + lane < num_arrived)
    least = tl.zeros([], tl.int64)
    if not EVERY:
        total = tl.zeros([], tl.int64)
        for base in range(0, num_rows, BLOCK):
            total += tl.sum(_contexts(base + lane, query_starts, context_lens, num_rows, longest, ahead).to(tl.int64))
        least = tl.maximum(total * kv_heads // (2 * num_sms), least_long)
    long_rows = tl.zeros([], tl.int64)
    long_tokens = tl.zeros([], tl.int64)
    for base in range(0, num_rows, BLOCK):
        context = _contexts(base + lane, query_starts, context_lens, num_rows, longest, ahead)
        is_long = context > least
        long_rows += tl.sum(is_long.to(tl.int64))
        long_tokens += tl.sum(tl.where(is_long, context, 0).to(tl.int64))
    # Each history's last part may be shorter than the others.
    part = tl.maximum(tl.cdiv(long_tokens, tl.maximum(max_parts - long_rows, 1)), least_part)
    part = tl.cdiv(part, ROUNDED_TO) * ROUNDED_TO
    tl.store(length, part.to(tl.int32))
    before = tl.zeros([], tl.int32)
    for base in range(0, num_rows, BLOCK):
        context = _contexts(base + lane, query_starts, context_lens, num_rows, longest, ahead)
        parts = tl.where(context > least, tl.cdiv(context, part), 0).to(tl.int32)
        first = before + tl.cumsum(parts) - parts
        tl.store(starts + base + lane, first, mask=base + lane < num_rows)
        for index in range(tl.max(parts)):
            tl.store(rows + first + index, base + lane, mask=index < parts)
        before += tl.sum(parts)
    tl.store(starts + num_rows, before)


@triton.jit
def _contexts(
    row: tl.tensor,
    query_starts: tl.tensor,
    context_lens: tl.tensor,
    num_rows: tl.tensor,
    longest: tl.tensor,
    ahead: tl.tensor,
) -> tl.tensor:
    """The context lengths of some rows, ``ahead`` tokens later; 0 for prompt chunks, rows without a query, and past the last."""
    real = row < num_rows
    query_len = tl.load(query_starts + row + 1, mask=real, other=0) - tl.load(query_starts + row, mask=real, other=0)
    counts = real & (query_len > 0) & (query_len <= longest)
    return tl.where(counts, tl.load(context_lens + row, mask=counts, other=0) + ahead, 0)


def divide_histories(batch: Batch, kv_heads: int, head_dim: int, limits: DeviceLimits, ahead: int = 0) -> Batch:
    """The batch with its `HistoryParts`, which hold ``ahead`` tokens more than each history has."""
    divided = division(kv_heads, head_dim, batch.query_lens_host, limits)
    rows, device = len(batch.query_lens_host), batch.context_lens.device

    def empty(size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.int32, device=device)

    parts = HistoryParts(
        starts=empty(rows + 1),
        rows=empty(divided.max_parts),
        length=empty(1),
        arrived=empty(divided.max_parts * kv_heads),
    )
    _divide_kernel[(1,)](
        batch.query_starts,
        batch.context_lens,
        parts.starts,
        parts.rows,
        parts.length,
        parts.arrived,
        rows,
        len(parts.arrived),
        longest_short(batch.query_lens_host),
        ahead,
        kv_heads,
        limits.num_sms,
        divided.max_parts,
        LEAST_LONG_HISTORY,
        divided.least_part,
        EVERY=divided.every,
        ROUNDED_TO=LEAST_PART,
        BLOCK=_BLOCK,
        OVERLAP=limits.overlaps,
        num_warps=4,
        **launch_options(limits.overlaps),
    )
    return replace(batch, parts=parts)
