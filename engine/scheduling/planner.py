"""The planner: divides one step's budget among the running sequences, admits waiting ones, and preempts to make room.

A `Planner` lives for one `Scheduler.plan`. The scheduler's module describes the rules that it carries out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import takewhile

from draftline.engine.request.sequence import Row, Sequence
from draftline.engine.scheduling.cache_manager import CacheManager
from draftline.engine.scheduling.queue import PriorityQueue

DraftLength = Callable[[Sequence], int]
"""How many drafts a sequence wants in this step. Called only if the step reaches the sequence's last known token."""

MAX_PROMPT_LOGITS = 512
"""The most tokens that one step computes of prompts whose log-probabilities are wanted: all of them need logits, which
would take gigabytes in a step of thousands. Each such prompt gets one token at least."""


class Planner:
    """Hands out one step's token budget, and the blocks and slots that the step needs."""

    def __init__(self, cache: CacheManager, waiting: PriorityQueue, token_budget: int, draft_len: DraftLength) -> None:
        """Set aside the tokens and blocks that the running sequences must have.

        Args:
            cache: the running sequences, with their slots and blocks.
            waiting: the sequences to admit from. Preempted sequences are added to it.
            token_budget: maximum tokens of the step, drafts included.
            draft_len: how many drafts a sequence wants.
        """
        self._cache = cache
        self._waiting = waiting
        self._draft_len = draft_len
        self._tokens = token_budget  # the rest of the budget
        self._prompt_logits = MAX_PROMPT_LOGITS  # the rest of these
        self._owed_tokens = 0  # of the rest: one for each decoding row that is not planned yet
        self._owed_blocks = 0  # blocks that rows not planned yet must have

        # A decoding sequence is owed one token. It is owed a block if that token is the first of a new block.
        prompts_run = False
        for sequence in cache.running:
            known = sequence.known
            if known >= sequence.max_len or sequence.waits_for_host:
                continue
            if known - sequence.computed == 1:
                self._owed_tokens += 1
                if known > len(sequence.blocks) * cache.block_size:
                    self._owed_blocks += 1
            else:
                prompts_run = True

        # Drafts may use the rest: half of it if a prompt could use it as well.
        self._draft_tokens = token_budget - self._owed_tokens
        if prompts_run or (waiting and cache.has_free_slot):
            self._draft_tokens //= 2

        self._rows: list[Row] = []
        self._admitted: list[Row] = []
        self._preempted: list[Sequence] = []

    def rows(self) -> tuple[tuple[Row, ...], tuple[Row, ...]]:
        """Plan the step.

        Returns:
            The rows of running sequences and those of admitted sequences, both in queue order.
        """
        self._plan_running()
        self._plan_waiting()
        return tuple(self._rows), tuple(self._admitted)

    def _plan_running(self) -> None:
        size = self._cache.block_size
        for sequence in tuple(self._cache.running):
            # All later sequences have been preempted too, or get no token either.
            slot = sequence.slot
            if slot is None or self._tokens < 1:
                break

            # A step in flight ends the sequence, or the host must read a step before it can plan the next.
            known = sequence.known
            pending = known - sequence.computed
            if (known >= sequence.max_len and sequence.unread) or sequence.waits_for_host:
                continue
            if pending < 1 or known >= sequence.max_len:
                raise RuntimeError(
                    f"{sequence.name} has nothing left to compute but was not finished: "
                    f"{known} of at most {sequence.max_len} tokens, {sequence.computed} computed"
                )

            # A decoding row takes the token and the block that it is owed. Prompts need no block here: admission
            # reserved blocks for all known tokens.
            if pending == 1:
                self._owed_tokens -= 1
                if known > len(sequence.blocks) * size:
                    self._owed_blocks -= 1
                    if not self._make_room(sequence):
                        break
                    self._cache.grow(sequence, 1)
            self._rows.append(self._row(sequence, slot, pending))
        self._owed_tokens = self._owed_blocks = 0

    def _plan_waiting(self) -> None:
        while self._waiting:
            # A sequence that this plan preempted stays out. So does one that still has rows in flight.
            head = self._waiting[0]
            if head in self._preempted or head.in_flight:
                break

            # If the first one does not fit, none is admitted: no sequence overtakes another.
            slot = self._admit(head)
            if slot is None:
                break
            self._waiting.remove(head)
            self._admitted.append(self._row(head, slot, head.known - head.computed))

    def _row(self, sequence: Sequence, slot: int, pending: int) -> Row:
        """Make the sequence's row: at least one token, and as many pending tokens and drafts as the budget allows."""
        # A prompt chunk leaves one token for each decoding row that is not planned yet.
        start = sequence.computed
        count = 1 if pending == 1 else min(pending, max(1, self._tokens - self._owed_tokens))
        if pending > 1 and sequence.wants_prompt_logits:
            count = min(count, max(1, self._prompt_logits))
            self._prompt_logits -= count
        self._tokens -= count

        # The row samples, and may draft, only if it reaches the last known token.
        if count < pending:
            return Row(sequence, slot, start, count, start + pending, 0, 0)
        wanted = self._draft_len(sequence)
        drafts = self._reserve_drafts(sequence, wanted) if wanted > 0 else 0
        return Row(sequence, slot, start, count, start + pending, drafts, drafts + 1)

    def _reserve_drafts(self, sequence: Sequence, wanted: int) -> int:
        """Reserve tokens and blocks for up to ``wanted`` drafts, without taking any that another row is owed."""
        # After the last draft one more token is sampled, so that token must fit below max_len as well.
        known = sequence.known
        useful = sequence.max_len - 1 - known
        drafts = min(wanted, useful, self._draft_tokens, self._tokens - self._owed_tokens)
        if drafts <= 0:
            return 0

        # Drafts take only blocks that no later row is owed. They never preempt: fewer blocks mean fewer drafts.
        cache = self._cache
        if known + drafts > len(sequence.blocks) * cache.block_size:
            lacking = cache.blocks_for(known + drafts) - len(sequence.blocks)
            spare = max(0, cache.pool.available - self._owed_blocks)
            cache.grow(sequence, min(lacking, spare))
            drafts = min(drafts, len(sequence.blocks) * cache.block_size - known)

        self._tokens -= drafts
        self._draft_tokens -= drafts
        return drafts

    def _make_room(self, sequence: Sequence) -> bool:
        """Preempt from the end of the queue until a block is available.

        The preempted sequences have no row yet. What they were owed stays set aside: a few tokens of one step.

        Returns:
            False if ``sequence`` itself was the last one, and so was preempted.
        """
        while not self._cache.pool.available:
            victim = self._cache.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _admit(self, head: Sequence) -> int | None:
        """Admit the first waiting sequence, if necessary by preempting sequences with larger ``order``.

        Returns:
            Its slot, or None if it cannot be admitted now.
        """
        # It needs a token of this step: one that is left, or the turn of a later sequence.
        cache = self._cache
        if self._tokens < 1 and not self._can_take_turn(head):
            return None

        # It needs a slot: a free one, or that of a later sequence.
        if not cache.has_free_slot and cache.running[-1].order <= head.order:
            return None

        # It needs blocks for the tokens that no cached prefix has. The prefix is held first, so that it stays.
        prefix = cache.match_prefix(head)
        lacking = cache.blocks_for(len(head.tokens)) - len(prefix) - cache.pool.available
        victims = self._victims(head, lacking)
        if victims is None:
            cache.pool.release(prefix)
            return None

        # Now it is certain to fit, so others may lose their slots, blocks and turns.
        for victim in victims:
            self._preempt(victim)
        if self._tokens < 1:
            self._take_back(self._rows.pop())
        return cache.admit(head, prefix)

    def _can_take_turn(self, head: Sequence) -> bool:
        return bool(self._rows) and self._rows[-1].sequence.order > head.order

    def _victims(self, head: Sequence, lacking: int) -> list[Sequence] | None:
        """Choose the running sequences to preempt for ``head``, from the last one on.

        Args:
            head: the sequence to admit.
            lacking: the blocks that it needs beyond the available ones.

        Returns:
            The fewest that suffice, or None if even all those with larger ``order`` do not.
        """
        cache = self._cache
        min_victims = 0 if cache.has_free_slot else 1
        if lacking <= 0 and not min_victims:
            return []

        # The common case of too few blocks is decided without counting how blocks are shared.
        rivals = list(takewhile(lambda sequence: sequence.order > head.order, reversed(cache.running)))
        if sum(len(rival.blocks) for rival in rivals) < lacking:
            return None

        # A block is freed once all its holders are among the victims.
        released: Counter[int] = Counter()
        freed = 0
        for count, rival in enumerate(rivals, 1):
            for block in rival.blocks:
                released[block] += 1
                freed += released[block] == cache.pool.references(block)
            if freed >= lacking and count >= min_victims:
                return rivals[:count]
        return None

    def _preempt(self, victim: Sequence) -> None:
        """Send the last running sequence back to the queue. If it has a row, that is the last of the rows."""
        if self._rows and self._rows[-1].sequence is victim:
            self._take_back(self._rows.pop())
        self._cache.preempt(victim)
        self._waiting.add(victim)
        self._preempted.append(victim)

    def _take_back(self, row: Row) -> None:
        """Return the tokens of a row that is dropped from this step to the budget."""
        self._tokens += row.count + row.drafts
