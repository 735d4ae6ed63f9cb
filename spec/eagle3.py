"""``Eagle3``: drafts with a head that reads the target's hidden states (Li et al. 2025, https://arxiv.org/abs/2503.01840).

The head sees an entry for each token but the newest: the hidden state of its position, and the token after it (see
`draftline.models.heads.eagle3`). Every forward pass of the target leaves its hidden states, fused to one vector a
token, in a store with the block numbers of the target's cache. So they are there for chunks of prompts, prefix hits and
sequences that did not draft until now, and the head's own cache can catch up at any time.

A round of K drafts takes K passes. The entries of its drafts have the head's own output in the place of hidden states.
The verification replaces these, so the first pass of the next round reads the last K + 1 entries again, however many
drafts were accepted: entries that were right are written once more with the same values.

A key and a value depend on their entry alone. The last entry of a block therefore depends on the first token of the
next block: after a prefix hit that ends there, it may be another continuation's. That can cost a draft, never change an
output.
"""

from __future__ import annotations

from itertools import zip_longest

import torch
from torch import Tensor
from typing_extensions import override

from draftline.kernels.batch import Batch, DraftQuery, KVCache
from draftline.kernels.constraints import ConstraintTable
from draftline.kernels.ops import Ops
from draftline.kernels.slots import SlotTable
from draftline.kernels.zeros import zeros
from draftline.models.heads.eagle3 import Eagle3Head
from draftline.models.hidden_states import HiddenStateSink
from draftline.spec.drafter import Drafter, DraftRows, GatherChunks


def round_begins_with(max_draft_tokens: int) -> int:
    """The newest tokens that the first pass of a round reads: those of K + 1 entries, and the one before them."""
    return max_draft_tokens + 2


class StateStore(HiddenStateSink):
    """The target's hidden states of all cached tokens, fused to one vector each.

    Attributes:
        layers: see `HiddenStateSink`.
    """

    def __init__(self, head: Eagle3Head, ops: Ops, blocks: int, block_size: int) -> None:
        """For a target's cache of ``blocks`` blocks."""
        self.layers = head.config.target_layers
        self._head, self._ops = head, ops
        # One entry more than the cache has: index -1, which padding writes and reads.
        shape = (blocks * block_size + 1, head.config.layer.hidden_size)
        self._states = zeros(shape, head.cache_dtype, head.device)

    @override
    def write(self, states: Tensor, batch: Batch) -> None:
        self._ops.put_rows(self._head.fuse(states), batch.cache_index, self._states)

    def read(self, batch: Batch) -> Tensor:
        """The states of a batch's positions, [T, hidden]."""
        return self._ops.take_rows(self._states, batch.cache_index)


class Eagle3(Drafter):
    """Drafts with a head on the target's device.

    Attributes:
        sink: the store of the hidden states that it reads.
    """

    name = "eagle3"
    keeps_cache = True

    def __init__(
        self,
        head: Eagle3Head,
        cache: KVCache,
        ops: Ops,
        max_draft_tokens: int,
        constraints: ConstraintTable,
    ) -> None:
        """Start with an empty cache.

        Args:
            head: the head, made for the target.
            cache: its keys and values, one layer with as many blocks as the target's cache.
            ops: the device's operations.
            max_draft_tokens: the most tokens that it proposes at once.
            constraints: the constraint table. Forced tokens are drafts, and the next passes' inputs.
        """
        self.max_draft_tokens = max_draft_tokens
        self.sink = self._store = StateStore(head, ops, cache.layers[0].keys.shape[0], cache.block_size)
        self._head = head
        self._cache = cache
        self._ops = ops
        self._constraints = constraints

    @override
    def propose(self, rows: DraftRows, table: SlotTable) -> None:
        ops, hidden, slots = self._ops, None, rows.slots
        query = DraftQuery(self.max_draft_tokens + 1, shift=1)
        passes = rows.passes(ops, table, query, rows.max_drafts, self._cache)
        for inputs, following in zip_longest(passes, passes[1:]):
            # The target's hidden states first, then the head's own.
            hidden = self._store.read(inputs.batch) if hidden is None else _of_slots(hidden, slots, inputs.slots)
            slots = inputs.slots
            logits, hidden = self._head.forward(inputs.batch, inputs.batch.token_ids, hidden, self._cache)
            # As in `DraftModel`: the target applies everything but the temperature.
            ops.draft_sampled(
                logits, self._head.target_ids, inputs.slots, inputs.positions, table, self._constraints, following
            )

    @override
    def catch_up(self, gather: GatherChunks) -> None:
        batch, tokens = gather(0), gather(1).token_ids
        self._head.fill_cache(batch, tokens, self._store.read(batch), self._cache)


def _of_slots(hidden: Tensor, before: Tensor, slots: Tensor) -> Tensor:
    """The rows of ``hidden``, one for each of the slots ``before``, that belong to ``slots``.

    They differ only where `Ops.gather_drafts` leaves rows out, instead of padding them.
    """
    return hidden if len(before) == len(slots) else hidden[torch.isin(before, slots)]
