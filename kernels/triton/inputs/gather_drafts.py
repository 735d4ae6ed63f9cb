"""A draft model's inputs for the next draft of each row.

As in `gather.py`, but with fixed shapes and nothing from the host. Lengths are read from the slot table, so that one CUDA
graph can hold all steps of a round. A parallel head decides all drafts in one step: its query goes on behind the known tokens.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.batch import Batch, DraftQuery, Inputs
from draftline.kernels.slots import SlotTable
from draftline.kernels.triton.overlap import launch_options, wait_unfollowed

_BLOCK = 128


@triton.jit
def _gather_drafts_kernel(
    slot_tokens: tl.tensor,
    slot_tables: tl.tensor,
    lengths: tl.tensor,
    rows: tl.tensor,
    drafts: tl.tensor,
    token_ids: tl.tensor,
    positions: tl.tensor,
    cache_index: tl.tensor,
    query_starts: tl.tensor,
    context_lens: tl.tensor,
    block_tables: tl.tensor,
    logits_index: tl.tensor,
    logits_slots: tl.tensor,
    logits_positions: tl.tensor,
    tokens_stride: int,
    tables_stride: int,
    AHEAD_ID: tl.constexpr,
    STEP: tl.constexpr,
    QUERY: tl.constexpr,
    AHEAD: tl.constexpr,
    LANES: tl.constexpr,
    SHIFT: tl.constexpr,
    MAX_BLOCKS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    part = tl.program_id(1)
    wait_unfollowed(OVERLAP)
    slot = tl.load(rows + row)
    own = tl.load(drafts + row)
    wanted = own > STEP
    # The position of the first draft that this step decides. The query is the QUERY tokens before it.
    decides = tl.load(lengths + slot) + STEP
    table = slot_tables + slot * tables_stride
    ENTRIES: tl.constexpr = QUERY + AHEAD
    context_len = tl.where(wanted, decides - SHIFT + AHEAD, ENTRIES)
    if part == 0:
        lane = tl.arange(0, LANES)
        mask = lane < ENTRIES
        first = context_len - ENTRIES
        token = tl.load(slot_tokens + slot * tokens_stride + first + lane + SHIFT, mask=lane < QUERY, other=0)
        token = tl.where(lane < QUERY, token, AHEAD_ID + lane - QUERY)
        written = first + tl.minimum(lane, QUERY + own - STEP) if AHEAD else first + lane
        block = tl.load(table + written // BLOCK_SIZE, mask=mask, other=0)
        target = block.to(tl.int64) * BLOCK_SIZE + written % BLOCK_SIZE
        index = row * ENTRIES + lane
        tl.store(token_ids + index, token.to(tl.int64), mask=mask)
        tl.store(positions + index, (first + lane).to(tl.int64), mask=mask)
        tl.store(cache_index + index, tl.where(wanted, target, -1), mask=mask)
        tl.store(query_starts + row, row * ENTRIES)
        tl.store(query_starts + row + 1, (row + 1) * ENTRIES)
        tl.store(context_lens + row, context_len)
        decision = row * (AHEAD + 1) + lane
        mask = lane <= AHEAD
        tl.store(logits_index + decision, (row * ENTRIES + QUERY - 1 + lane).to(tl.int64), mask=mask)
        tl.store(logits_slots + decision, slot + tl.zeros_like(lane), mask=mask)
        tl.store(logits_positions + decision, tl.where(wanted, decides + lane, -1).to(tl.int64), mask=mask)
    blocks = tl.cdiv(context_len, BLOCK_SIZE)
    for base in range(part * BLOCK, blocks, tl.num_programs(1) * BLOCK):
        index = base + tl.arange(0, BLOCK)
        block = tl.load(table + index, mask=index < blocks, other=0)
        tl.store(block_tables + row.to(tl.int64) * MAX_BLOCKS + index, block, mask=index < blocks)


def gather_drafts(
    slots: SlotTable, rows: Tensor, drafts: Tensor, query: DraftQuery, block_size: int, *, overlap: bool = False
) -> Inputs:
    """``Ops.gather_drafts`` by one kernel, which with ``overlap`` starts before the previous one has ended.

    A row without a draft in this step is padding that attends to its query alone.
    """
    device = slots.tokens.device
    count, entries = rows.shape[0], query.entries
    longest, max_blocks = slots.tokens.shape[1], slots.block_tables.shape[1]
    token_ids, positions, cache_index = torch.empty((3, count * entries), dtype=torch.int64, device=device)
    logits_index, logits_slots, logits_positions = torch.empty(
        (3, count * (query.ahead + 1)), dtype=torch.int64, device=device
    )
    query_starts = torch.empty(count + 1, dtype=torch.int32, device=device)
    context_lens = torch.empty(count, dtype=torch.int32, device=device)
    block_tables = torch.empty((count, max_blocks), dtype=torch.int32, device=device)
    if count:
        _gather_drafts_kernel[(count, min(16, triton.cdiv(max_blocks, _BLOCK)))](
            slots.tokens,
            slots.block_tables,
            slots.lengths,
            rows,
            drafts,
            token_ids,
            positions,
            cache_index,
            query_starts,
            context_lens,
            block_tables,
            logits_index,
            logits_slots,
            logits_positions,
            slots.tokens.stride(0),
            slots.block_tables.stride(0),
            AHEAD_ID=query.ahead_id,
            STEP=query.step,
            QUERY=query.tokens,
            AHEAD=query.ahead,
            LANES=triton.next_power_of_2(entries),
            SHIFT=query.shift,
            MAX_BLOCKS=max_blocks,
            BLOCK_SIZE=block_size,
            BLOCK=_BLOCK,
            OVERLAP=overlap,
            num_warps=2,
            **launch_options(overlap),
        )
    batch = Batch(
        token_ids=token_ids,
        positions=positions,
        cache_index=cache_index,
        query_starts=query_starts,
        context_lens=context_lens,
        block_tables=block_tables,
        logits_index=logits_index,
        query_lens_host=(entries,) * count,
        context_lens_host=(longest,) * count,
    )
    return Inputs(batch, logits_slots, logits_positions)
