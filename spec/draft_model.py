"""``DraftModel``: drafts with a smaller model that has the target's vocabulary.

The draft model has its own keys and values, in blocks with the numbers of the target's: one block table serves both.
Each draft is sampled as the target will sample it, with the noise of the same seed and position. So the two models
agree as often as their distributions allow (Gumbel coupling).

K drafts take K forward passes. The last draft is never an input, so if all drafts are accepted, the cache lacks that
token and the newest one. Therefore the first pass of every round has two tokens as input. A cache that lacks more has
to catch up first; `engine.drafting.cache` keeps track of that.
"""

from __future__ import annotations

from itertools import zip_longest

from typing_extensions import override

from draftline.kernels.batch import DraftQuery, Inputs, KVCache
from draftline.kernels.collectives import Collectives
from draftline.kernels.constraints import ConstraintTable
from draftline.kernels.ops import Ops
from draftline.kernels.slots import SlotTable
from draftline.models.model import Model
from draftline.spec.drafter import Drafter, DraftRows, GatherChunks

ROUND_BEGINS_WITH = 2
"""The newest tokens that the first pass of a round reads."""


class DraftModel(Drafter):
    """Drafts with a model on the target's device."""

    name = "draft_model"
    keeps_cache = True

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        ops: Ops,
        max_draft_tokens: int,
        constraints: ConstraintTable,
    ) -> None:
        """Start with an empty cache.

        Args:
            model: the draft model, with the target's vocabulary.
            cache: the keys and values of the draft model, with as many blocks as the target's cache.
            ops: the device's operations.
            max_draft_tokens: the most tokens that it proposes at once.
            constraints: the constraint table. Forced tokens are drafts, and the next passes' inputs.
        """
        self.max_draft_tokens = max_draft_tokens
        self._model = model
        self._cache = cache
        self._ops = ops
        self._constraints = constraints

    @override
    def propose(self, rows: DraftRows, table: SlotTable) -> None:
        ops, query = self._ops, DraftQuery(ROUND_BEGINS_WITH, shift=0)
        passes = rows.passes(ops, table, query, rows.max_drafts, self._cache)
        for inputs, following in zip_longest(passes, passes[1:]):
            logits = self._model.forward(inputs.batch, self._cache)
            # Without top-p, penalties and masks: they cost time, and the target applies them anyway.
            ops.draft_sampled(logits, None, inputs.slots, inputs.positions, table, self._constraints, following)
            self._agree(inputs, following, table)

    @override
    def catch_up(self, gather: GatherChunks) -> None:
        self._model.forward(gather(0), self._cache)

    def _agree(self, inputs: Inputs, following: Inputs | None, table: SlotTable) -> None:
        """Let all devices that compute this model go on with the same tokens. This one is alone."""


class SharedDraftModel(DraftModel):
    """A draft model that several ranks share, as they do the target.

    Each rank has a part of the weights and of the cache, and computes every pass. Rank 0 knows the sampling parameters
    and the constraints: its drafts are the next pass's inputs on every rank.
    """

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        ops: Ops,
        max_draft_tokens: int,
        constraints: ConstraintTable,
        collectives: Collectives,
    ) -> None:
        """``model`` and ``cache`` are this rank's parts; see `DraftModel` for the other arguments.

        ``constraints`` of a rank other than 0 has no constraint.
        """
        super().__init__(model, cache, ops, max_draft_tokens, constraints)
        self._collectives = collectives

    @override
    def _agree(self, inputs: Inputs, following: Inputs | None, table: SlotTable) -> None:
        # Padding has position -1: what stands there, the same on all ranks, stays.
        tokens = self._collectives.spread(table.tokens[inputs.slots, inputs.positions].long())
        table.tokens[inputs.slots, inputs.positions] = tokens.int()
        if following is not None:
            following.batch.token_ids.copy_(table.tokens[following.slots, following.positions - 1])
