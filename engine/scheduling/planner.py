"""One step's plan in the making: who gets how much of the budget, who is admitted, and who must make room.

A `Planner` lives for one `Scheduler.plan`, whose rules it carries out (they are described there).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import takewhile

from draftline.engine.request.sequence import Row, Sequence
from draftline.engine.scheduling.cache_manager import Residency
from draftline.engine.scheduling.queue import SequenceQueue

DraftLength = Callable[[Sequence], int]
"""How many drafts a sequence would like in this step; asked only where the step reaches its last known token."""


class Planner:
    """Hands out one step's token budget, and the blocks and slots that it takes."""

    def __init__(self, residency: Residency, waiting: SequenceQueue, token_budget: int, draft_len: DraftLength) -> None:
        """Count what the running sequences cannot do without."""
        self._residency = residency
        self._waiting = waiting
        self._draft_len = draft_len
        self._tokens = token_budget  # what is left of the budget
        self._owed_tokens = 0  # of which: one for each decoding row that is not planned yet
        self._owed_blocks = 0  # blocks that rows not planned yet must have
        prompts_run = False
        for sequence in residency.running:
            known = sequence.known
            if known >= sequence.max_len or sequence.waits_for_host:
                continue
            if known - sequence.computed == 1:
                self._owed_tokens += 1
                if known > len(sequence.blocks) * residency.block_size:
                    self._owed_blocks += 1
            else:
                prompts_run = True
        self._draft_tokens = token_budget - self._owed_tokens  # what drafts may use
        if prompts_run or (waiting and residency.has_free_slot):
            self._draft_tokens //= 2
        self._rows: list[Row] = []
        self._admitted: list[Row] = []
        self._preempted: list[Sequence] = []

    def rows(self) -> tuple[tuple[Row, ...], tuple[Row, ...]]:
        """Plan the step: the rows of running sequences, and those of admitted ones, both in queue order."""
        self._plan_running()
        self._plan_waiting()
        return tuple(self._rows), tuple(self._admitted)

    def _plan_running(self) -> None:
        size = self._residency.block_size
        for sequence in tuple(self._residency.running):
            slot = sequence.slot
            if slot is None or self._tokens < 1:
                break  # from here on all were preempted, or get no turn
            known = sequence.known
            pending = known - sequence.computed
            if (known >= sequence.max_len and sequence.unread) or sequence.waits_for_host:
                continue  # it ends with a step that is on its way, or the host must read that first
            if pending < 1 or known >= sequence.max_len:
                raise RuntimeError(
                    f"{sequence.name} has nothing to run for but was not finished: "
                    f"{known} of at most {sequence.max_len} tokens, {sequence.computed} computed"
                )
            if pending == 1:
                self._owed_tokens -= 1
                if known > len(sequence.blocks) * size:  # only then: admission reserves blocks for all known tokens
                    self._owed_blocks -= 1
                    if not self._make_room(sequence):
                        break
                    self._residency.grow(sequence, 1)
            self._rows.append(self._row(sequence, slot, pending))
        self._owed_tokens = self._owed_blocks = 0

    def _plan_waiting(self) -> None:
        while self._waiting:
            head = self._waiting[0]
            if head in self._preempted or head.launched:
                break  # it made room in this very plan, or in one whose steps still run
            slot = self._seat(head)
            if slot is None:
                break  # nobody overtakes it
            self._waiting.remove(head)
            self._admitted.append(self._row(head, slot, head.known - head.computed))

    def _row(self, sequence: Sequence, slot: int, pending: int) -> Row:
        """The sequence's row, of at least one token, and what of its ``pending`` ones and drafts the budget allows."""
        start = sequence.computed
        count = 1 if pending == 1 else min(pending, max(1, self._tokens - self._owed_tokens))
        self._tokens -= count
        if count < pending:
            return Row(sequence, slot, start, count, start + pending, 0, 0)
        wanted = self._draft_len(sequence)
        drafts = self._reserve_drafts(sequence, wanted) if wanted > 0 else 0
        return Row(sequence, slot, start, count, start + pending, drafts, drafts + 1)

    def _reserve_drafts(self, sequence: Sequence, wanted: int) -> int:
        """Tokens and blocks for as many of the ``wanted`` drafts as the sequence can have without harming anyone."""
        known = sequence.known
        useful = sequence.max_len - 1 - known  # the token after the last draft is sampled too
        drafts = min(wanted, useful, self._draft_tokens, self._tokens - self._owed_tokens)
        if drafts <= 0:
            return 0
        residency = self._residency
        if known + drafts > len(sequence.blocks) * residency.block_size:
            lacking = residency.blocks_for(known + drafts) - len(sequence.blocks)
            spare = max(0, residency.pool.available - self._owed_blocks)
            residency.grow(sequence, min(lacking, spare))
            drafts = min(drafts, len(sequence.blocks) * residency.block_size - known)
        self._tokens -= drafts
        self._draft_tokens -= drafts
        return drafts

    def _make_room(self, sequence: Sequence) -> bool:
        """Preempt from the end of the queue until a block is available; False if the running ``sequence`` was the end.

        Those at the end have no row yet. What they were owed stays set aside: a few tokens of one step.
        """
        while not self._residency.pool.available:
            victim = self._residency.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _seat(self, head: Sequence) -> int | None:
        """The slot of the first waiting sequence, if it can be admitted now, if need be in the place of later ones."""
        residency = self._residency
        if self._tokens < 1 and not self._can_take_turn(head):
            return None
        if not residency.has_free_slot and residency.running[-1].order <= head.order:
            return None
        prefix = residency.hold_prefix(head)
        lacking = residency.blocks_for(len(head.tokens)) - len(prefix) - residency.pool.available
        victims = self._victims(head, lacking)
        if victims is None:
            residency.pool.release(prefix)
            return None
        for victim in victims:
            self._preempt(victim)
        if self._tokens < 1:
            self._take_back(self._rows.pop())
        return residency.seat(head, prefix)

    def _can_take_turn(self, head: Sequence) -> bool:
        return bool(self._rows) and self._rows[-1].sequence.order > head.order

    def _victims(self, head: Sequence, lacking: int) -> list[Sequence] | None:
        """The running sequences, last first, whose preemption admits ``head``; None if even all later ones do not do.

        Args:
            head: who is to be admitted.
            lacking: the blocks it needs beyond those available.
        """
        residency = self._residency
        fewest = 0 if residency.has_free_slot else 1
        if lacking <= 0 and not fewest:
            return []
        rivals = list(takewhile(lambda sequence: sequence.order > head.order, reversed(residency.running)))
        if sum(len(rival.blocks) for rival in rivals) < lacking:
            return None  # the usual case, decided without counting shares
        released: Counter[int] = Counter()
        freed = 0
        for number, rival in enumerate(rivals, 1):
            for block in rival.blocks:
                released[block] += 1
                freed += released[block] == residency.pool.references(block)
            if freed >= lacking and number >= fewest:
                return rivals[:number]
        return None

    def _preempt(self, victim: Sequence) -> None:
        """Send the last running sequence back to wait. Its row, if it has one, is the last of the rows."""
        if self._rows and self._rows[-1].sequence is victim:
            self._take_back(self._rows.pop())
        self._residency.preempt(victim)
        self._waiting.add(victim)
        self._preempted.append(victim)

    def _take_back(self, row: Row) -> None:
        """Cancel the turn of a running sequence in this step."""
        self._tokens += row.count + row.drafts
