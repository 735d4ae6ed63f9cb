"""A step's inputs from the slot table: one small upload, one kernel, no wait for the device.

`gather` is ``Ops.gather``. `gather_planned` does the same for a plan on the device, with upper bounds on the host, as a
CUDA graph needs it. Tokens past the last row are padding, which no kernel writes to the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from operator import add

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.batch import Batch, Inputs
from draftline.kernels.slots import SlotTable
from draftline.kernels.triton.attention.plan import SHORT_QUERY
from draftline.kernels.triton.linear.vendor import compared_rows

_BLOCK = 128

FROM_NEWEST = -1
"""A row's start in a plan, where its query starts with its newest known token (`SlotTable.lengths`)."""


@triton.jit
def _contexts(row: tl.tensor, rows: tl.tensor, plan: tl.tensor, lengths: tl.tensor, num_rows: tl.tensor) -> tl.tensor:
    """The context lengths of some rows; 0 for one without a query, and -1 past the last."""
    real = row < num_rows
    query_len = tl.load(plan + row + 1, mask=real, other=0) - tl.load(plan + row, mask=real, other=0)
    start = tl.load(plan + 2 * (num_rows + 1) + row, mask=real, other=0)
    slot = tl.load(rows + row, mask=real, other=0)
    start = tl.where(start < 0, tl.load(lengths + slot, mask=real, other=1) - 1, start)
    return tl.where(real, tl.where(query_len > 0, start + query_len, 0), -1)


@triton.jit(
    do_not_specialize=["num_rows", "num_tokens", "num_logits"],
    do_not_specialize_on_alignment=["plan"],  # part of a graph's inputs
)
def _gather_kernel(
    slot_tokens: tl.tensor,
    slot_tables: tl.tensor,
    rows: tl.tensor,
    plan: tl.tensor,
    token_ids: tl.tensor,
    positions: tl.tensor,
    cache_index: tl.tensor,
    query_starts: tl.tensor,
    context_lens: tl.tensor,
    block_tables: tl.tensor,
    logits_index: tl.tensor,
    logits_slots: tl.tensor,
    logits_positions: tl.tensor,
    logits_starts: tl.tensor,
    longest_first: tl.tensor,
    lengths: tl.tensor,
    tokens_stride: int,
    tables_stride: int,
    num_rows: int,
    num_tokens: int,
    num_logits: int,
    MAX_BLOCKS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    part = tl.program_id(1)
    parts = tl.num_programs(1)
    # The plan's three lines: query starts and logits starts with num_rows + 1 entries each, then the rows' starts.
    query_begin = tl.load(plan + row)
    logits_begin = tl.load(plan + num_rows + 1 + row)
    lane = tl.arange(0, BLOCK)
    if row == num_rows:
        # One program more than rows: it ends the list of starts and pads the rest of the bucket.
        tl.store(query_starts + row, query_begin, mask=part == 0)
        tl.store(logits_starts + row, logits_begin, mask=part == 0)
        for base in range(query_begin + part * BLOCK, num_tokens, parts * BLOCK):
            index = base + lane
            mask = index < num_tokens
            zero = tl.zeros([BLOCK], dtype=tl.int64)
            tl.store(token_ids + index, zero, mask=mask)
            tl.store(positions + index, zero, mask=mask)
            tl.store(cache_index + index, zero - 1, mask=mask)
        for base in range(logits_begin + part * BLOCK, num_logits, parts * BLOCK):
            index = base + lane
            mask = index < num_logits
            zero = tl.zeros([BLOCK], dtype=tl.int64)
            tl.store(logits_index + index, zero, mask=mask)
            tl.store(logits_slots + index, zero, mask=mask)
            tl.store(logits_positions + index, zero - 1, mask=mask)
        return

    query_end = tl.load(plan + row + 1)
    logits_end = tl.load(plan + num_rows + 1 + row + 1)
    start = tl.load(plan + 2 * (num_rows + 1) + row)
    slot = tl.load(rows + row)
    if start < 0:
        start = tl.load(lengths + slot) - 1
    query_len = query_end - query_begin
    context_len = start + query_len
    tl.store(query_starts + row, query_begin, mask=part == 0)
    tl.store(logits_starts + row, logits_begin, mask=part == 0)
    tl.store(context_lens + row, context_len, mask=part == 0)
    if part == 0:
        # The row's rank by context length is the number of rows before it.
        own = tl.where(query_len > 0, context_len, 0)
        before = 0
        for base in range(0, num_rows, BLOCK):
            other = base + lane
            length = _contexts(other, rows, plan, lengths, num_rows)
            before += tl.sum(((length > own) | ((length == own) & (other < row))).to(tl.int32), axis=0)
        tl.store(longest_first + before, row)

    table = slot_tables + slot * tables_stride
    for base in range(part * BLOCK, query_len, parts * BLOCK):
        offset = base + lane
        mask = offset < query_len
        position = start + offset
        token = tl.load(slot_tokens + slot * tokens_stride + position, mask=mask, other=0)
        block = tl.load(table + position // BLOCK_SIZE, mask=mask, other=0)
        index = query_begin + offset
        tl.store(token_ids + index, token.to(tl.int64), mask=mask)
        tl.store(positions + index, position.to(tl.int64), mask=mask)
        tl.store(cache_index + index, block.to(tl.int64) * BLOCK_SIZE + position % BLOCK_SIZE, mask=mask)
    for base in range(part * BLOCK, tl.cdiv(context_len, BLOCK_SIZE), parts * BLOCK):
        index = base + lane
        mask = index < tl.cdiv(context_len, BLOCK_SIZE)
        block = tl.load(table + index, mask=mask, other=0)
        tl.store(block_tables + row.to(tl.int64) * MAX_BLOCKS + index, block, mask=mask)
    for base in range(logits_begin + part * BLOCK, logits_end, parts * BLOCK):
        index = base + lane
        # The last logits_end - logits_begin tokens of the row.
        token_index = query_end - logits_end + index
        mask = index < logits_end
        tl.store(logits_index + index, token_index.to(tl.int64), mask=mask)
        tl.store(logits_slots + index, tl.zeros([BLOCK], dtype=tl.int64) + slot, mask=mask)
        tl.store(logits_positions + index, (start + token_index - query_begin + 1).to(tl.int64), mask=mask)


@dataclass(frozen=True, slots=True)
class GatherBounds:
    """A planned step's sizes as the host knows them: exact, or a bucket's upper bounds.

    Attributes:
        num_tokens: T, the length of the token tensors; tokens past the last row's are padding.
        num_logits: the length of ``logits_index``; entries past the last row's are 0.
        query_lens: each row's query length, or its bound.
        context_lens: each row's context length, or its bound.
        logits_lens: how many logits each row wants, or its bound; empty: all tokens go through every layer whole.
    """

    num_tokens: int
    num_logits: int
    query_lens: tuple[int, ...]
    context_lens: tuple[int, ...]
    logits_lens: tuple[int, ...]


def gather_planned(table: SlotTable, slots: Tensor, plan: Tensor, bounds: GatherBounds, block_size: int) -> Inputs:
    """Build a step's inputs from a plan on the device.

    Args:
        table: the slot table.
        slots: [R] int64, the slot of each row.
        plan: [3 R + 2] int32: R + 1 query starts, R + 1 logits starts, and each row's computed tokens or `FROM_NEWEST`.
            A row whose two query starts are equal has no tokens.
        bounds: the plan's sizes, or upper bounds.
        block_size: tokens a cache block.
    """
    device = table.tokens.device
    num_rows, num_tokens, num_logits = len(bounds.query_lens), bounds.num_tokens, bounds.num_logits
    max_blocks = table.block_tables.shape[1]
    token_ids = torch.empty(num_tokens, dtype=torch.int64, device=device)
    positions = torch.empty_like(token_ids)
    cache_index = torch.empty_like(token_ids)
    query_starts = torch.empty(num_rows + 1, dtype=torch.int32, device=device)
    context_lens = torch.empty(num_rows, dtype=torch.int32, device=device)
    logits_starts = torch.empty_like(query_starts)
    longest_first = torch.empty(num_rows, dtype=torch.int32, device=device)
    block_tables = torch.empty((num_rows, max_blocks), dtype=torch.int32, device=device)
    # Separate allocations: an address that is a multiple of 16 in some steps only would double the kernels that read it.
    logits_index = torch.empty(num_logits, dtype=torch.int64, device=device)
    logits_slots = torch.empty_like(logits_index)
    logits_positions = torch.empty_like(logits_index)
    parts = min(16, max(1, triton.cdiv(max(bounds.query_lens, default=0), _BLOCK)))
    _gather_kernel[(num_rows + 1, parts)](
        table.tokens,
        table.block_tables,
        slots,
        plan,
        token_ids,
        positions,
        cache_index,
        query_starts,
        context_lens,
        block_tables,
        logits_index,
        logits_slots,
        logits_positions,
        logits_starts,
        longest_first,
        table.lengths,
        table.tokens.stride(0),
        table.block_tables.stride(0),
        num_rows,
        num_tokens,
        num_logits,
        MAX_BLOCKS=max_blocks,
        BLOCK_SIZE=block_size,
        BLOCK=_BLOCK,
        num_warps=2,
    )
    batch = Batch(
        token_ids=token_ids,
        positions=positions,
        cache_index=cache_index,
        query_starts=query_starts,
        context_lens=context_lens,
        block_tables=block_tables,
        logits_index=logits_index,
        query_lens_host=bounds.query_lens,
        context_lens_host=bounds.context_lens,
        longest_first=longest_first,
        # Where all tokens decide, or none does, there is nothing to choose.
        logits_starts=logits_starts if bounds.logits_lens and 0 < num_logits < num_tokens else None,
        logits_lens_host=bounds.logits_lens,
    )
    return Inputs(batch, logits_slots, logits_positions)


def plan_on_host(query_lens: tuple[int, ...], starts: tuple[int, ...], logits_counts: tuple[int, ...]) -> list[int]:
    """The plan of `gather_planned` as a flat list of 3 R + 2 integers; a start may be `FROM_NEWEST`."""
    return [*accumulate(query_lens, initial=0), *accumulate(logits_counts, initial=0), *starts]


def gather(
    table: SlotTable,
    slots: Tensor,
    query_lens: tuple[int, ...],
    starts: tuple[int, ...],
    logits_counts: tuple[int, ...],
    block_size: int,
    from_newest: tuple[bool, ...] = (),
) -> Inputs:
    """``Ops.gather`` by one kernel. The batch's ``query_lens_host`` are upper bounds, and its last tokens may be padding."""
    device = table.tokens.device
    planned = starts
    if from_newest:
        planned = tuple(FROM_NEWEST if newest else start for start, newest in zip(starts, from_newest, strict=True))
    plan = torch.tensor(plan_on_host(query_lens, planned, logits_counts), dtype=torch.int32)
    if device.type == "cuda":
        plan = plan.pin_memory().to(device, non_blocking=True)
    bounds = GatherBounds(
        num_tokens=compared_rows(sum(query_lens)),
        num_logits=sum(logits_counts),
        query_lens=tuple(map(_query_bound, query_lens, logits_counts)),
        context_lens=tuple(map(add, starts, query_lens)),
        # Each number would be a kernel of its own, which a step would wait for.
        logits_lens=logits_counts if max(logits_counts, default=0) <= 1 else (),
    )
    return gather_planned(table, slots, plan, bounds, block_size)


def _query_bound(query_len: int, logits_count: int) -> int:
    """The query length for which a row's attention is planned: short pieces of prompts count as long ones.

    So it is in graphs, whose kernels are compiled before they are needed. A tile that fits the piece would be one more
    kernel: it would save microseconds, but its compilation delays a step by half a second.
    """
    decides = logits_count == query_len
    return query_len if decides or query_len <= 1 else max(query_len, SHORT_QUERY + 1)
