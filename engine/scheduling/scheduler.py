"""The scheduler: which sequences run in each step, how far, and in which cache blocks.

One rule covers everything: a sequence has known tokens and computed tokens, and a step lets computed catch up with
known (plus drafts) within one token budget. Prompt chunks, decodes, verification of drafts, prefix hits and recomputing
after preemption are all this rule. The scheduler sees token ids and counts only: no tensors, texts or stop conditions.

**Order.** Sequences are served by ``(order, arrival)``, smaller first. ``order`` is what the option ``scheduling``
gives (`ordering.py`). By default `FairShares` gives a place in time: the arrival, or the end of its caller's earlier
requests if that is later, minus the head start that the priority buys (priority times ``ageing_s`` seconds). It never
changes, so neither does the order of two sequences. It is finite, and with `FairShares` new sequences come at their
arrival less their head start, or later, so none starves.
The first in order can always run to its end: it gets at least one token of every step's budget, it is admitted before
all others, and every sequence behind it makes room for it.

**Making room.** A running sequence that lacks a block takes those of the last in order, and is itself preempted if it
is the last. A waiting one takes the place (slot, blocks, turn) of running ones with strictly larger ``order`` only, and
only if that suffices to admit it. A preempted sequence waits again with nothing computed; its full blocks stay in the
prefix tree until others need them, so recomputing is mostly a prefix hit.

**The budget.** While sequences decode, `StepBudget` may give a step with prompts fewer tokens than the maximum. In
queue order, each row takes what it wants but leaves one token for each decoding row behind it. Drafts are the first to
be cut: they may use what the decoding rows leave, but only half of it while a prompt could use it as well. They never
take a block that a row behind them needs. Of prompts whose log-probabilities are wanted, a step computes few tokens
(`planner.MAX_PROMPT_LOGITS`).

**Running behind the device.** `plan` counts its own steps as run: the next plan may be made, and launched, before the
host has read the results of the last one. Until `commit` brings these, a sequence's newest token is known to the device
alone (`Sequence.unread`). The scheduler needs only an upper bound of their number: a row with drafts may decide fewer
tokens than it has drafts, so until its commit all drafts count as accepted. Positions are then upper bounds, for which
blocks are reserved. The device knows the true positions, and the host learns them at the commit. If a sequence turns
out to have ended, or was preempted meanwhile, its rows in launched steps are dropped. Freed blocks and slots need no
care: steps run on the device in the order of their launch, so a block's next owner writes after its last reader.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import chain, count

from draftline.engine.cache_journal import CacheJournal
from draftline.engine.request.sequence import Plan, Sequence
from draftline.engine.scheduling.cache_manager import CacheManager
from draftline.engine.scheduling.planner import DraftLength, Planner
from draftline.engine.scheduling.queue import PriorityQueue, rank


def no_drafts(sequence: Sequence) -> int:
    """Plain decoding: no sequence is drafted for."""
    return 0


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """The scheduler's state, and its counts since the start.

    Attributes:
        running: sequences with a slot.
        waiting: sequences without one.
        free_blocks: cache blocks whose contents mean nothing.
        cached_blocks: blocks that no sequence holds, but that the prefix tree knows.
        total_blocks: all blocks.
        preemptions: how often a running sequence was preempted.
        prefix_hit_tokens: prompt tokens found in the cache at first admissions.
        prefix_query_tokens: prompt tokens of first admissions.
    """

    running: int
    waiting: int
    free_blocks: int
    cached_blocks: int
    total_blocks: int
    preemptions: int
    prefix_hit_tokens: int
    prefix_query_tokens: int


class Scheduler:
    """Plans steps over a paged cache. One thread calls it."""

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        num_slots: int,
        token_budget: int,
        max_model_len: int,
        prefix_caching: bool = True,
    ) -> None:
        """Create an idle scheduler.

        Args:
            num_blocks: cache blocks.
            block_size: tokens per block.
            num_slots: maximum number of running sequences.
            token_budget: maximum number of tokens that one step computes, drafts included.
            max_model_len: maximum length of a sequence, in tokens.
            prefix_caching: whether computed blocks are kept for later prompts with the same beginning.

        Raises:
            ValueError: a size is less than one.
        """
        if token_budget < 1:
            raise ValueError(f"token_budget: must be at least 1, not {token_budget}")
        self._cache = CacheManager(num_blocks, block_size, num_slots, prefix_caching)
        self._waiting = PriorityQueue()
        self._followers: dict[Sequence, list[Sequence]] = {}
        self._token_budget = token_budget
        self._max_len = min(max_model_len, num_blocks * block_size + 1)  # the last token is never cached
        self._arrivals = count()
        self._cancelled: list[Sequence] = []

    @property
    def journal(self) -> CacheJournal:
        """The changes of the prefix tree. Any thread may follow them."""
        return self._cache.journal

    @property
    def running(self) -> PriorityQueue:
        """The sequences that hold a slot, in queue order."""
        return self._cache.running

    @property
    def has_prompts(self) -> bool:
        """Whether a sequence waits, or has more than its newest token to compute: a prompt, or after a preemption."""
        return bool(self._waiting) or any(row.known - row.computed > 1 for row in self._cache.running)

    def fits(self, prompt_len: int, max_len: int) -> bool:
        """Whether a sequence with this prompt can run until it has ``max_len`` tokens."""
        return 1 <= prompt_len < max_len <= self._max_len

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence. If it can share blocks with its leader, it waits until the leader's prompt is computed.

        Raises:
            ValueError: the sequence does not fit or was added before, or its leader was not added.
        """
        name = sequence.name
        if not self.fits(sequence.prompt_len, sequence.max_len):
            raise ValueError(
                f"{name}: a prompt of {sequence.prompt_len} tokens, to end at {sequence.max_len}, does not fit: "
                f"at most {self._max_len} tokens can run"
            )
        if sequence.arrival >= 0:
            raise ValueError(f"{name}: was added before")
        leader = sequence.leader
        if leader is not None and leader.arrival < 0:
            raise ValueError(f"{name}: its leader was not added")
        sequence.arrival = next(self._arrivals)
        nothing_to_share = not self._cache.pool.shareable(sequence.prompt_len - 1)
        if leader is None or leader.finished or leader.output_len or nothing_to_share:
            self._waiting.add(sequence)
        else:
            self._followers.setdefault(leader, []).append(sequence)

    def plan(self, draft_len: DraftLength = no_drafts, token_budget: int | None = None) -> Plan:
        """Decide the next step: end cancelled sequences, then give running and waiting ones their tokens and blocks.

        Blocks are reserved for the longest outcome of the step: every row's ``start + count + drafts`` tokens. The plan
        must be committed, after all earlier ones.

        Args:
            draft_len: how many drafts a sequence wants. It may get fewer, and never gets more than could be accepted
                before its ``max_len``.
            token_budget: maximum number of tokens of this step, if that is less than for all steps.
        """
        # Cancelled sequences end first, so that their slots and blocks are free for the others.
        cancelled = tuple([sequence for sequence in dict.fromkeys(self._cancelled) if not sequence.finished])
        self._cancelled.clear()
        for sequence in cancelled:
            self.finish(sequence)

        budget = self._token_budget if token_budget is None else min(token_budget, self._token_budget)
        running, admitted = Planner(self._cache, self._waiting, budget, draft_len).rows()
        rows = running + admitted

        # The plan counts as run: the next one may be made before this one's results are read.
        for row in rows:
            sequence = row.sequence
            sequence.computed += row.count + row.drafts
            sequence.unread += row.samples
            sequence.in_flight += 1

        return Plan(rows, admitted, self._cache.take_new_blocks(rows), cancelled)

    def commit(self, plan: Plan, sampled: Seq[Seq[int]]) -> None:
        """Record the results of the oldest step that is not committed yet.

        The caller decides where a sequence ends: it cuts the accepted tokens there and calls `finish` after this. A row
        whose sequence has finished meanwhile is dropped. Blocks reserved for drafts that were rejected stay with the
        sequence, for its next tokens.

        Args:
            plan: the step.
            sampled: each row's accepted tokens; none for a row that did not sample.

        Raises:
            ValueError: a row has tokens that its plan cannot have decided.
        """
        cache, followers = self._cache, self._followers
        for row, accepted in zip(plan.rows, sampled, strict=True):
            sequence = row.sequence
            sequence.in_flight -= 1
            if sequence.finished:
                continue

            # Accepted tokens replace the upper bound of the plan: rejected drafts are neither known nor computed.
            computed = row.start + row.count
            if accepted:
                tokens = sequence.tokens
                if computed < len(tokens) or len(accepted) > row.samples:
                    raise ValueError(
                        f"{sequence.name}: {len(accepted)} tokens accepted at {computed} of "
                        f"{len(tokens)} with {row.drafts} drafts"
                    )
                tokens += accepted
                sequence.unread -= row.samples
                computed = len(tokens) - 1  # the newest token's keys and values come with the next step
                if sequence.slot is not None:
                    sequence.computed -= row.samples - len(accepted)

            # Full blocks become available to other prompts, and followers can share the prompt once it is computed. A
            # sequence that was preempted after the launch has no blocks to register.
            if sequence.slot is not None and computed // cache.block_size > sequence.registered:
                cache.register(sequence, computed)
            if followers and computed >= sequence.prompt_len:
                self._free_followers(sequence)

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence in the next plan, unless it has ended by then."""
        self._cancelled.append(sequence)

    def finish(self, sequence: Sequence) -> None:
        """End a waiting or running sequence, and release all it holds. Full computed blocks stay in the prefix tree.

        Ending a sequence twice does nothing.
        """
        if sequence.finished:
            return
        sequence.finished = True
        if sequence.slot is not None:
            self._cache.release(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)
        elif sequence.arrival >= 0 and sequence.leader in self._followers:
            self._followers[sequence.leader].remove(sequence)
        self._free_followers(sequence)

    def block_generation(self, block: int) -> int:
        """How often ``block`` has been allocated, see `BlockPool.generation`."""
        return self._cache.pool.generation(block)

    def forget_prefixes(self) -> None:
        """Free the cached blocks. Blocks of running sequences stay in the prefix tree."""
        self._cache.pool.forget_cached()

    def stats(self) -> SchedulerStats:
        """The current state. Any thread may call this; the numbers may then be a step apart."""
        cache, pool = self._cache, self._cache.pool
        return SchedulerStats(
            running=len(cache.running),
            waiting=len(self._waiting) + sum(map(len, list(self._followers.values()))),
            free_blocks=pool.free,
            cached_blocks=pool.cached,
            total_blocks=pool.num_blocks,
            preemptions=cache.preemptions,
            prefix_hit_tokens=cache.prefix_hit_tokens,
            prefix_query_tokens=cache.prefix_query_tokens,
        )

    def check(self) -> None:
        """Assert all invariants, between steps. For tests and soaks: the time grows with the size of the cache."""
        self._cache.check()
        for queue in (self._cache.running, self._waiting):
            assert [rank(s) for s in queue] == sorted({rank(s) for s in queue}), "a queue is out of order"
        for sequence in chain(self._waiting, *self._followers.values()):
            name = sequence.name
            assert not sequence.finished, f"{name} waits though it has finished"
            assert sequence.slot is None, f"{name} waits in slot {sequence.slot}"
            assert not sequence.blocks, f"{name} waits with blocks"
            assert sequence.computed == sequence.registered == 0, f"{name} waits with computed tokens"
        for leader in self._followers:
            assert not leader.finished, f"{leader.name} has finished but its followers wait"
            assert not leader.output_len, f"{leader.name}'s prompt is computed but its followers wait"

    def _free_followers(self, leader: Sequence) -> None:
        """Queue the sequences that waited for ``leader``."""
        for follower in self._followers.pop(leader, ()):
            self._waiting.add(follower)
