"""``Drafter``: proposes the next tokens of decoding sequences, for the target model to verify.

A drafter works on slots, not on sequences. It writes its drafts into the slot table, behind each sequence's known
tokens; only the device needs to know their number. So the step is the same for every drafter, and `NoDrafter` is a
drafter too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor
from typing_extensions import override

from draftline.kernels.batch import Batch, DraftQuery, Inputs, KVCache
from draftline.kernels.ops import Ops
from draftline.kernels.slots import SlotTable
from draftline.models.hidden_states import NO_HIDDEN_STATES, HiddenStateSink


@dataclass(frozen=True, slots=True)
class DraftRows:
    """The rows of a step that want drafts.

    Attributes:
        slots: [R] int64, the slot of each row.
        drafts: [R] int32, the most drafts of each row; 0 for padding, and for rows without drafts.
        max_drafts: an upper bound of ``drafts``.
        uneven: whether some histories are much longer than the others, so that they are worth dividing.
    """

    slots: Tensor
    drafts: Tensor
    max_drafts: int
    uneven: bool = False

    def passes(self, ops: Ops, table: SlotTable, query: DraftQuery, count: int, cache: KVCache) -> tuple[Inputs, ...]:
        """The inputs of a round's passes over the drafter's ``cache``; see `Ops.gather_drafts` for the others."""
        inputs = ops.gather_drafts(table, self.slots, self.drafts, query, count, cache.block_size)
        if not self.uneven:
            return inputs
        # The first pass has all rows, and each later one a token more of each history.
        parts = ops.divide_histories(inputs[0].batch, cache.layers[0], len(inputs) - 1).parts
        return tuple([replace(one, batch=replace(one.batch, parts=parts)) for one in inputs])


@dataclass(frozen=True, slots=True)
class DraftChunk:
    """Known tokens that a drafter's own cache lacks: ``count`` tokens from position ``start`` of a slot."""

    slot: int
    start: int
    count: int


GatherChunks = Callable[[int], Batch]
"""The inputs of a pass over the chunks that a drafter catches up with, without logits; the argument moves all of them
so many positions on."""


class Drafter(Protocol):
    """Proposes tokens. Whatever it proposes, the output equals that of plain decoding.

    Attributes:
        name: its name in options and statistics.
        max_draft_tokens: the most tokens that it can propose at once.
        sink: receives the target's hidden states, as far as the drafter wants them.
        keeps_cache: whether it has keys and values of its own, and has to catch up.
    """

    name: str
    max_draft_tokens: int
    sink: HiddenStateSink = NO_HIDDEN_STATES
    keeps_cache: bool = False

    def propose(self, rows: DraftRows, table: SlotTable) -> None:
        """Write drafts into ``table.tokens``, without waiting for the device.

        The drafts of a row go to the positions from ``table.lengths`` of its slot on. The positions beyond the row's
        ``drafts``, but within ``rows.max_drafts``, may be written too. Nothing else of the table is written.
        """
        ...

    def catch_up(self, gather: GatherChunks) -> None:
        """Compute the cache of the known tokens that ``gather`` gives, in stream order. A CUDA graph captures it."""
        return  # a drafter without a cache has nothing to do

    def forget(self) -> None:
        """Forget the texts of earlier sequences, without waiting for the device."""
        return  # most remember none


class WrappedDrafter(Drafter):
    """Another drafter; the base of those that write surer drafts over some of its own.

    The other drafter must not rely on its own drafts in a later round.
    """

    def __init__(self, other: Drafter) -> None:
        """``other`` does what this one does not override."""
        self.name = other.name
        self.max_draft_tokens = other.max_draft_tokens
        self.sink = other.sink
        self.keeps_cache = other.keeps_cache
        self._other = other

    @override
    def propose(self, rows: DraftRows, table: SlotTable) -> None:
        self._other.propose(rows, table)

    @override
    def catch_up(self, gather: GatherChunks) -> None:
        self._other.catch_up(gather)

    @override
    def forget(self) -> None:
        self._other.forget()
