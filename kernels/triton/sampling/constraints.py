"""Constraints on the device: masks of all positions of a verify, states after it, and forced tokens as drafts.

Each is a chain of look-ups (see `draftline.kernels.constraints`), one program a row, without a wait for the host.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.constraints import BUDGETS, DRAFTS, MASK, NEXT, ConstraintTable, SampleConstraints
from draftline.kernels.slots import SampleRows, SlotTable

_MASK = tl.constexpr(MASK)
_BUDGETS = tl.constexpr(BUDGETS)
_DRAFTS = tl.constexpr(DRAFTS)
_NEXT = tl.constexpr(NEXT)
_BLOCK = 128


@triton.jit
def _after(
    words: tl.tensor, state: tl.tensor, classes: tl.tensor, token: tl.tensor, constrained: tl.tensor
) -> tl.tensor:
    """The state after a token; 0 where the token is not allowed."""
    pair = tl.load(words + classes + token // 2, mask=constrained, other=0)
    kind = (pair >> (token % 2 * 16)) & 0xFFFF
    return tl.load(words + state + _NEXT + kind, mask=constrained, other=0)


@triton.jit(do_not_specialize_on_alignment=["starts"])  # part of a graph's inputs
def _constrain_kernel(
    row_slots: tl.tensor,
    row_positions: tl.tensor,
    starts: tl.tensor,
    slot_tokens: tl.tensor,
    words: tl.tensor,
    slot_states: tl.tensor,
    slot_classes: tl.tensor,
    slot_ends: tl.tensor,
    mask_rows: tl.tensor,
    states: tl.tensor,
    num_rows: int,
    num_samples: int,
    tokens_stride: int,
    host_masks: int,
    host_samples: int,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    begin = tl.load(starts + row)
    if row == num_rows:
        # One program more than rows: positions beyond the rows are not constrained.
        for base in range(begin, num_samples, BLOCK):
            index = base + tl.arange(0, BLOCK)
            nothing = tl.zeros([BLOCK], tl.int32)
            tl.store(mask_rows + index, nothing, mask=index < num_samples)
            tl.store(states + index, nothing, mask=index < num_samples)
        return
    count = tl.load(starts + row + 1) - begin
    if count == 0:
        return
    slot = tl.load(row_slots + begin)
    position = tl.load(row_positions + begin)
    classes = tl.load(slot_classes + slot)
    end = tl.load(slot_ends + 2 * slot)
    reasoning_end = tl.load(slot_ends + 2 * slot + 1)
    state = tl.load(slot_states + slot)
    for index in range(count):
        constrained = state > 0
        mask_row = tl.load(words + state + _MASK, mask=constrained, other=0)
        mask_row = tl.where(state < 0, (host_masks + slot * host_samples + index).to(tl.int32), mask_row)
        budgets = tl.load(words + state + _BUDGETS, mask=constrained, other=0)
        if budgets != 0:
            left = tl.where(budgets < 0, reasoning_end, end) - position - index
            budgets = tl.abs(budgets)
            entries = tl.load(words + budgets)
            mask_row = tl.load(words + budgets + 2)
            for entry in range(1, entries):
                distance = tl.load(words + budgets + 1 + 2 * entry)
                mask = tl.load(words + budgets + 2 + 2 * entry)
                mask_row = tl.where(distance < left, mask, mask_row)
        tl.store(mask_rows + begin + index, mask_row)
        tl.store(states + begin + index, state)
        draft = tl.load(slot_tokens + slot * tokens_stride + position + index, mask=index < count - 1, other=0)
        state = tl.where(state < 0, state, _after(words, state, classes, draft, constrained & (index < count - 1)))


@triton.jit(do_not_specialize_on_alignment=["starts"])
def _advance_kernel(
    tokens: tl.tensor,
    accepted: tl.tensor,
    row_slots: tl.tensor,
    starts: tl.tensor,
    states: tl.tensor,
    words: tl.tensor,
    slot_states: tl.tensor,
    slot_classes: tl.tensor,
    num_rows: int,
    BLOCK: tl.constexpr,
) -> None:
    """One lane a row."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    kept = tl.load(accepted + row, mask=row < num_rows, other=0)
    decided = kept > 0
    begin = tl.load(starts + row, mask=decided, other=0)
    last = begin + kept - 1
    state = tl.load(states + last, mask=decided, other=0)
    constrained = state > 0
    slot = tl.load(row_slots + begin, mask=constrained, other=0)
    classes = tl.load(slot_classes + slot, mask=constrained, other=0)
    token = tl.load(tokens + last, mask=constrained, other=0)
    after = _after(words, state, classes, token, constrained)
    tl.store(slot_states + slot, after, mask=after > 0)


@triton.jit
def forced_draft(
    index: tl.tensor, slot: tl.tensor, words: tl.tensor, slot_states: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """Whether a slot's state forces its drafts of some indices, and the tokens that they must be. None of a negative index is."""
    state = tl.load(slot_states + slot)
    address = tl.load(words + state + _DRAFTS, mask=state > 0, other=0)
    forced = (index >= 0) & (index < tl.load(words + address, mask=address > 0, other=0))
    return forced, tl.load(words + address + 1 + index, mask=forced, other=0)


@triton.jit
def _draft_forced_kernel(
    rows: tl.tensor,
    slot_tokens: tl.tensor,
    lengths: tl.tensor,
    words: tl.tensor,
    slot_states: tl.tensor,
    tokens_stride: int,
    COUNT: tl.constexpr,
    PADDED: tl.constexpr,
) -> None:
    slot = tl.load(rows + tl.program_id(0))
    draft = tl.arange(0, PADDED)
    forced, token = forced_draft(draft, slot, words, slot_states)
    length = tl.load(lengths + slot)
    tl.store(slot_tokens + slot * tokens_stride + length + draft, token, mask=forced & (draft < COUNT))


def constrain(rows: SampleRows, starts: Tensor, table: SlotTable, constraints: ConstraintTable) -> SampleConstraints:
    """``Ops.constrain`` by Triton kernels."""
    count, samples = starts.shape[0] - 1, rows.slots.shape[0]
    mask_rows, states = torch.empty((2, samples), dtype=torch.int32, device=rows.slots.device)
    _constrain_kernel[(count + 1,)](
        rows.slots,
        rows.positions,
        starts,
        table.tokens,
        constraints.words,
        constraints.states,
        constraints.classes,
        constraints.ends,
        mask_rows,
        states,
        count,
        samples,
        table.tokens.stride(0),
        constraints.host_masks,
        constraints.host_samples,
        BLOCK=_BLOCK,
        num_warps=1,
    )
    return SampleConstraints(mask_rows, states)


def advance_constraints(
    tokens: Tensor,
    accepted: Tensor,
    rows: SampleRows,
    starts: Tensor,
    sample_constraints: SampleConstraints,
    constraints: ConstraintTable,
) -> None:
    """``Ops.advance_constraints`` by Triton kernels."""
    count = accepted.shape[0]
    if count:
        _advance_kernel[(triton.cdiv(count, _BLOCK),)](
            tokens,
            accepted,
            rows.slots,
            starts,
            sample_constraints.states,
            constraints.words,
            constraints.states,
            constraints.classes,
            count,
            BLOCK=_BLOCK,
            num_warps=4,
        )


def draft_forced(slots: Tensor, count: int, table: SlotTable, constraints: ConstraintTable) -> None:
    """``Ops.draft_forced`` by Triton kernels."""
    if slots.shape[0] and count:
        _draft_forced_kernel[(slots.shape[0],)](
            slots,
            table.tokens,
            table.lengths,
            constraints.words,
            constraints.states,
            table.tokens.stride(0),
            COUNT=count,
            PADDED=triton.next_power_of_2(count),
            num_warps=1,
        )
