"""Constraints in numpy: the CPU path of `Ops.constrain` and its companions, and the oracle of their kernels."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from draftline.kernels.constraints import BUDGETS, DRAFTS, HOST, MASK, NEXT, ConstraintTable, SampleConstraints
from draftline.kernels.slots import SampleRows, SlotTable

_Ints = npt.NDArray[np.int64]


def constrain(rows: SampleRows, starts: Tensor, table: SlotTable, constraints: ConstraintTable) -> SampleConstraints:
    """``Ops.constrain`` in plain torch."""
    begins = starts.numpy(force=True).astype(np.int64)
    counts = np.diff(begins)
    mask_rows = np.zeros(rows.slots.shape[0], np.int32)
    states = np.zeros(rows.slots.shape[0], np.int32)
    constrained = np.flatnonzero(counts)
    first, count = begins[constrained], counts[constrained]
    slot, position = rows.slots.numpy(force=True)[first], rows.positions.numpy(force=True)[first]
    state = constraints.states.numpy(force=True)[slot].astype(np.int64)
    classes = constraints.classes.numpy(force=True)[slot].astype(np.int64)
    ends = constraints.ends.numpy(force=True)[slot]
    words, tokens = constraints.words.numpy(force=True), table.tokens.numpy(force=True)
    index = 0
    while True:
        on = (state != 0) & (count > index)
        if not on.any():
            break
        slot, position, state, classes, ends, first, count = (
            values[on] for values in (slot, position, state, classes, ends, first, count)
        )
        states[first + index] = state
        by_host = constraints.host_masks + slot * constraints.host_samples + index
        mask_rows[first + index] = np.where(
            state == HOST, by_host, _mask_rows(words, np.maximum(state, 0), ends - position[:, None] - index)
        )
        more = count > index + 1
        draft = tokens[slot, np.minimum(position + index, tokens.shape[1] - 1)]
        state = np.where(state == HOST, HOST, np.where(more, _after(words, np.maximum(state, 0), classes, draft), 0))
        index += 1
    device = rows.slots.device
    return SampleConstraints(torch.from_numpy(mask_rows).to(device), torch.from_numpy(states).to(device))


def advance_constraints(
    tokens: Tensor,
    accepted: Tensor,
    rows: SampleRows,
    starts: Tensor,
    sample_constraints: SampleConstraints,
    constraints: ConstraintTable,
) -> None:
    """``Ops.advance_constraints`` in plain torch."""
    kept = accepted.numpy(force=True).astype(np.int64)
    begin = starts.numpy(force=True)[:-1][kept > 0].astype(np.int64)
    last = begin + kept[kept > 0] - 1
    state = sample_constraints.states.numpy(force=True)[last].astype(np.int64)
    slot, last, state = (values[state > 0] for values in (rows.slots.numpy(force=True)[begin], last, state))
    if not len(slot):
        return
    classes = constraints.classes.numpy(force=True)[slot].astype(np.int64)
    after = _after(constraints.words.numpy(force=True), state, classes, tokens.numpy(force=True)[last])
    legal = after > 0
    device = tokens.device
    where = torch.from_numpy(slot[legal]).to(device)
    constraints.states[where] = torch.from_numpy(after[legal].astype(np.int32)).to(device)


def draft_forced(slots: Tensor, count: int, table: SlotTable, constraints: ConstraintTable) -> None:
    """``Ops.draft_forced`` in plain torch."""
    of_drafts, index = slots.repeat_interleave(count), torch.arange(count, device=slots.device).repeat(len(slots))
    forced, tokens = forced_drafts(of_drafts, index, constraints)
    if forced.any():
        where = torch.from_numpy(forced.nonzero()[0]).to(slots.device)
        slot = of_drafts[where]
        table.tokens[slot, table.lengths[slot] + index[where]] = torch.from_numpy(tokens[forced]).to(slots.device)


def forced_drafts(
    slots: Tensor, index: Tensor, constraints: ConstraintTable
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int32]]:
    """Whether a draft is forced, and the token that it must be.

    Args:
        slots: [S] int64, the slot of each draft.
        index: [S] int64, its index behind the slot's known tokens.
        constraints: the constraint table.
    """
    words, states = constraints.words.numpy(force=True), constraints.states.numpy(force=True)
    state, index_host = states[slots.numpy(force=True)].astype(np.int64), index.numpy(force=True)
    address = np.where(state > 0, words[np.maximum(state, 0) + DRAFTS], 0).astype(np.int64)
    forced = (address > 0) & (index_host < np.where(address > 0, words[address], 0))
    return forced, words[np.where(forced, address + 1 + index_host, 0)]


def _after(words: npt.NDArray[np.int32], state: _Ints, classes: _Ints, token: npt.NDArray[np.integer]) -> _Ints:
    """The states after tokens; 0 where a token is not allowed. Undefined for state 0."""
    token = token.astype(np.int64)
    kind = (words[classes + token // 2] >> (token % 2 * 16)) & 0xFFFF
    after: _Ints = words[state + NEXT + kind].astype(np.int64)
    return after


def _mask_rows(words: npt.NDArray[np.int32], state: _Ints, left: _Ints) -> npt.NDArray[np.int32]:
    """The rows of the states' masks, with ``left`` tokens to come: to the text's end, and to the reasoning's.

    Undefined for state 0.
    """
    mask_rows = words[state + MASK]
    for row in np.flatnonzero(words[state + BUDGETS]):
        budgets = int(words[state[row] + BUDGETS])
        early, budgets = int(budgets < 0), abs(budgets)
        distances, masks = words[budgets + 1 : budgets + 1 + 2 * words[budgets]].reshape(-1, 2).T
        within = int(np.searchsorted(distances, left[row, early] - 1, side="right"))
        mask_rows[row] = masks[max(within - 1, 0)]
    return mask_rows
