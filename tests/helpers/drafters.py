"""Drafters and policies that tests make up, to see that no draft can change an output."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

import torch
from typing_extensions import override

from draftline.engine.core import Core
from draftline.engine.drafting.policy import DraftPolicy, Lacking, Running, WrappedPolicy, nothing_lacking
from draftline.engine.request.sequence import Sequence as EngineSequence
from draftline.kernels.batch import Batch
from draftline.kernels.ops import Ops
from draftline.kernels.slots import SlotTable
from draftline.spec.drafter import DraftChunk, Drafter, DraftRows, GatherChunks


class Adversary(Drafter):
    """A drafter whose proposals a test chooses, from the known tokens and the number of tokens behind them."""

    name = "adversary"

    def __init__(self, max_draft_tokens: int, propose: Callable[[list[int], int], int]) -> None:
        self.max_draft_tokens = max_draft_tokens
        self._propose = propose

    @override
    def propose(self, rows: DraftRows, table: SlotTable) -> None:
        for slot in rows.slots.tolist():
            length = int(table.lengths[slot])
            known = table.tokens[slot, :length].tolist()
            for ahead in range(rows.max_drafts):
                table.tokens[slot, length + ahead] = self._propose(known, ahead)

    @override
    def catch_up(self, gather: GatherChunks) -> None:
        raise AssertionError("it has no cache")


def oracle(drafts: int, texts: Iterable[Sequence[int]], *, wrong_every: int = 0) -> Adversary:
    """Proposes what follows in the first of ``texts`` that begins so, but for every ``wrong_every``-th position."""
    known_texts = [list(text) for text in texts]

    def propose(known: list[int], ahead: int) -> int:
        place = len(known) + ahead
        right = next((t[place] for t in known_texts if len(t) > place and t[: len(known)] == known), 0)
        return (right + 1) % 256 if wrong_every and place % wrong_every == 0 else right

    return Adversary(drafts, propose)


def chunks_of(core: Core) -> list[DraftChunk]:
    """The chunks that the core's drafter will catch up with."""
    seen: list[DraftChunk] = []
    eager = core._runner._executors.eager
    catch_up = eager.catch_up
    eager.catch_up = lambda chunks: (seen.extend(chunks), catch_up(chunks))[1]  # type: ignore[method-assign, func-returns-value]
    return seen


def gatherer(chunks: Sequence[DraftChunk], table: SlotTable, ops: Ops, block_size: int) -> GatherChunks:
    """What an executor passes to `Drafter.catch_up`."""
    slots = torch.tensor([chunk.slot for chunk in chunks])
    counts = tuple(chunk.count for chunk in chunks)

    def gather(shift: int) -> Batch:
        starts = tuple(chunk.start + shift for chunk in chunks)
        return ops.gather(table, slots, counts, starts, (0,) * len(chunks), block_size).batch

    return gather


class SomeSteps(WrappedPolicy):
    """Drafts in some steps only, for some sequences only, and explores now and then."""

    def __init__(self, policy: DraftPolicy, seed: int) -> None:
        super().__init__(policy)
        self._draw = random.Random(seed)
        self._exploring = False
        self._on = True

    @property
    @override
    def exploring(self) -> bool:
        return self._exploring

    @override
    def begin_step(self, running: Running, lacking: Lacking = nothing_lacking) -> None:
        self._exploring = self._draw.random() < 0.2
        self._on = self._draw.random() < 0.6
        super().begin_step(running, lacking)

    @override
    def draft_len(self, sequence: EngineSequence) -> int:
        return self._draw.randint(0, super().draft_len(sequence)) if self._on else 0
