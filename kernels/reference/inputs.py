"""The inputs of steps and of drafters' passes, gathered from the slot table.

In numpy, on the table itself where it is on the host: torch's operations on so few numbers take longer.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from draftline.kernels.batch import Batch, DraftQuery, Inputs
from draftline.kernels.slots import SlotTable

_ZERO = np.zeros(1, np.int64)


def gather(
    table: SlotTable,
    slots: Tensor,
    query_lens: tuple[int, ...],
    starts: tuple[int, ...],
    logits_counts: tuple[int, ...],
    block_size: int,
    from_newest: tuple[bool, ...] = (),
) -> Inputs:
    """``Ops.gather`` in plain torch."""
    slot, length, start, count = slots.numpy(force=True), *map(np.array, (query_lens, starts, logits_counts))
    if from_newest:
        start = np.where(from_newest, table.lengths.numpy(force=True)[slot] - 1, start)
    end = length.cumsum()
    token_slot, position = slot.repeat(length), _ranges(start, length)
    block_tables = table.block_tables.numpy(force=True)
    block = block_tables[token_slot, position // block_size].astype(np.int64)

    def tensor(values: np.ndarray, dtype: type[np.generic] = np.int64) -> Tensor:
        return torch.from_numpy(values.astype(dtype, copy=False)).to(slots.device)

    wanted = _ranges(end - count, count)
    batch = Batch(
        token_ids=tensor(table.tokens.numpy(force=True)[token_slot, position]),
        positions=tensor(position),
        cache_index=tensor(block * block_size + position % block_size),
        query_starts=tensor(np.concatenate((_ZERO, end)), np.int32),
        context_lens=tensor(start + length, np.int32),
        block_tables=tensor(block_tables[slot], np.int32),
        logits_index=tensor(wanted),
        query_lens_host=query_lens,
        context_lens_host=tuple((start + length).tolist()),
    )
    return Inputs(batch, tensor(token_slot[wanted]), tensor(position[wanted] + 1))


def gather_drafts(
    table: SlotTable, slots: Tensor, drafts: Tensor, query: DraftQuery, passes: int, block_size: int
) -> tuple[Inputs, ...]:
    """``Ops.gather_drafts`` in plain torch."""
    later = DraftQuery(1, query.shift)
    queries = (query, *[later] * (passes - 1))
    return tuple(_gather_pass(table, slots, drafts, step, query, block_size) for step, query in enumerate(queries))


def _gather_pass(
    table: SlotTable, slots: Tensor, drafts: Tensor, step: int, query: DraftQuery, block_size: int
) -> Inputs:
    """The inputs of the pass that decides the drafts after ``step`` others."""
    # Rows without a draft in this pass are left out.
    wanted = drafts.numpy(force=True) > step
    chosen = slots.numpy(force=True)[wanted]
    count, entries = len(chosen), query.entries
    starts = table.lengths.numpy(force=True)[chosen] + (step - query.tokens - query.shift)
    inputs = gather(
        table,
        torch.from_numpy(chosen).to(slots.device),
        (entries,) * count,
        tuple(starts.tolist()),
        (query.ahead + 1,) * count,
        block_size,
    )
    batch = inputs.batch
    later = batch.positions.numpy(force=True) + query.shift
    tokens = table.tokens.numpy(force=True)[chosen.repeat(entries), later]
    token_ids = torch.from_numpy(tokens.astype(np.int64)).to(slots.device)
    cache_index = batch.cache_index
    if query.ahead:
        entry = torch.arange(entries, device=slots.device)
        behind = entry[query.tokens :] + (query.ahead_id - query.tokens)
        token_ids.view(count, entries)[:, query.tokens :] = behind
        last = drafts[torch.from_numpy(wanted)].long()[:, None] + (query.tokens - step)
        cache_index = cache_index.view(count, entries).gather(1, torch.minimum(entry, last)).flatten()
    batch = replace(batch, token_ids=token_ids, cache_index=cache_index)
    return Inputs(batch, inputs.slots, inputs.positions + query.shift)


def _ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The concatenated ranges ``start``, ``start + 1``, … of each length."""
    ends = lengths.cumsum()
    ranges: np.ndarray = np.arange(lengths.sum()) + (starts - ends + lengths).repeat(lengths)
    return ranges
