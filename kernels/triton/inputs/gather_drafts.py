"""A drafter's inputs for the passes of a round.

As in `gather.py`, but with fixed shapes and nothing from the host. Lengths are read from the slot table, so that one CUDA
graph can hold all passes of a round. Only the drafts that later passes read are not known yet: `draft.py` puts them in their place. A
parallel head decides all drafts in one pass: its query goes on behind the known tokens.
"""

from __future__ import annotations

import dataclasses

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.batch import Batch, DraftQuery, Inputs
from draftline.kernels.slots import SlotTable
from draftline.kernels.triton.overlap import launch_options, wait_unfollowed

_BLOCK = 128

_ALIGNED = 4
"""Elements: the tensors of each later pass begin at multiples of 16 bytes, so that kernels read all of them alike."""


@triton.jit(do_not_specialize=["later_stride"])
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
    later_positions: tl.tensor,
    later_cache_index: tl.tensor,
    later_decided: tl.tensor,
    later_contexts: tl.tensor,
    later_starts: tl.tensor,
    later_index: tl.tensor,
    tokens_stride: int,
    tables_stride: int,
    later_stride: int,
    AHEAD_ID: tl.constexpr,
    PASSES: tl.constexpr,
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
    # The position of the first draft. The first pass reads the QUERY tokens before it.
    length = tl.load(lengths + slot)
    table = slot_tables + slot * tables_stride
    ENTRIES: tl.constexpr = QUERY + AHEAD
    context_len = tl.where(own > 0, length - SHIFT + AHEAD, ENTRIES)
    if part == 0:
        lane = tl.arange(0, LANES)
        mask = lane < ENTRIES
        first = context_len - ENTRIES
        token = tl.load(slot_tokens + slot * tokens_stride + first + lane + SHIFT, mask=lane < QUERY, other=0)
        token = tl.where(lane < QUERY, token, AHEAD_ID + lane - QUERY)
        written = first + tl.minimum(lane, QUERY + own) if AHEAD else first + lane
        block = tl.load(table + written // BLOCK_SIZE, mask=mask, other=0)
        target = block.to(tl.int64) * BLOCK_SIZE + written % BLOCK_SIZE
        index = row * ENTRIES + lane
        tl.store(token_ids + index, token.to(tl.int64), mask=mask)
        tl.store(positions + index, (first + lane).to(tl.int64), mask=mask)
        tl.store(cache_index + index, tl.where(own > 0, target, -1), mask=mask)
        tl.store(query_starts + row, row * ENTRIES)
        tl.store(query_starts + row + 1, (row + 1) * ENTRIES)
        tl.store(context_lens + row, context_len)
        decision = row * (AHEAD + 1) + lane
        mask = lane <= AHEAD
        tl.store(logits_index + decision, (row * ENTRIES + QUERY - 1 + lane).to(tl.int64), mask=mask)
        tl.store(logits_slots + decision, slot + tl.zeros_like(lane), mask=mask)
        tl.store(logits_positions + decision, tl.where(own > 0, length + lane, -1).to(tl.int64), mask=mask)
        for step in tl.static_range(1, PASSES):
            wanted = own > step
            context = tl.where(wanted, length - SHIFT + step, 1)
            position = context - 1
            block = tl.load(table + position // BLOCK_SIZE).to(tl.int64)
            place = (step - 1) * later_stride + row
            tl.store(later_positions + place, position.to(tl.int64))
            tl.store(later_cache_index + place, tl.where(wanted, block * BLOCK_SIZE + position % BLOCK_SIZE, -1))
            tl.store(later_decided + place, tl.where(wanted, length + step, -1).to(tl.int64))
            tl.store(later_contexts + place, context)
        if PASSES > 1:
            tl.store(later_starts + row, row)
            tl.store(later_starts + row + 1, row + 1)
            tl.store(later_index + row, row.to(tl.int64))
    # All passes share the table: its blocks are those of the last one's context.
    blocks = tl.cdiv(context_len + tl.maximum(tl.minimum(own, PASSES) - 1, 0), BLOCK_SIZE)
    for base in range(part * BLOCK, blocks, tl.num_programs(1) * BLOCK):
        index = base + tl.arange(0, BLOCK)
        block = tl.load(table + index, mask=index < blocks, other=0)
        tl.store(block_tables + row.to(tl.int64) * MAX_BLOCKS + index, block, mask=index < blocks)


def gather_drafts(
    table: SlotTable,
    slots: Tensor,
    drafts: Tensor,
    query: DraftQuery,
    passes: int,
    block_size: int,
    *,
    overlap: bool = False,
) -> tuple[Inputs, ...]:
    """``Ops.gather_drafts`` by one kernel, which with ``overlap`` starts before the previous one has ended.

    A row without a pass's draft is padding there that attends to its query alone.
    """
    device = table.tokens.device
    count, entries = slots.shape[0], query.entries
    longest, max_blocks = table.tokens.shape[1], table.block_tables.shape[1]
    token_ids, positions, cache_index = torch.empty((3, count * entries), dtype=torch.int64, device=device)
    logits_index, logits_slots, logits_positions = torch.empty(
        (3, count * (query.ahead + 1)), dtype=torch.int64, device=device
    )
    query_starts = torch.empty(count + 1, dtype=torch.int32, device=device)
    context_lens = torch.empty(count, dtype=torch.int32, device=device)
    block_tables = torch.empty((count, max_blocks), dtype=torch.int32, device=device)
    stride = -(-count // _ALIGNED) * _ALIGNED
    later_ids, later_positions, later_cache_index, later_decided = torch.empty(
        (4, passes - 1, stride), dtype=torch.int64, device=device
    )
    later_contexts = torch.empty((passes - 1, stride), dtype=torch.int32, device=device)
    later_starts = torch.empty(count + 1, dtype=torch.int32, device=device)
    later_index = torch.empty(count, dtype=torch.int64, device=device)
    if count:
        _gather_drafts_kernel[(count, min(16, triton.cdiv(max_blocks, _BLOCK)))](
            table.tokens,
            table.block_tables,
            table.lengths,
            slots,
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
            later_positions,
            later_cache_index,
            later_decided,
            later_contexts,
            later_starts,
            later_index,
            table.tokens.stride(0),
            table.block_tables.stride(0),
            stride,
            AHEAD_ID=query.ahead_id,
            PASSES=passes,
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
    first = Batch(
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
    later = [
        Inputs(
            dataclasses.replace(
                first,
                token_ids=later_ids[step, :count],
                positions=later_positions[step, :count],
                cache_index=later_cache_index[step, :count],
                query_starts=later_starts,
                context_lens=later_contexts[step, :count],
                logits_index=later_index,
                query_lens_host=(1,) * count,
                settled=False,
            ),
            logits_slots,
            later_decided[step, :count],
        )
        for step in range(passes - 1)
    ]
    return Inputs(first, logits_slots, logits_positions), *later
