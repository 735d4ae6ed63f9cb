"""The scheduler: which sequences run in each step, how far, and in which cache blocks.

One rule covers everything: a sequence has known tokens and computed tokens, and a step lets computed catch up with
known (plus drafts) within one token budget. Prompt chunks, decodes, verification of drafts, prefix hits and recomputing
after preemption are all this rule. The scheduler sees token ids and counts only: no tensors, texts or stop conditions.

**Order.** Sequences are served by ``(order, arrival)``, smaller first, where ``order`` is the arrival time minus the
head start that the priority buys (priority times ``ageing_s`` seconds). It never changes, so neither does the order of
two sequences; and whatever arrives later than the largest head start comes after everyone who waits already, so nobody
starves. The first in order can always run to its end: it gets at least one token of every step's budget, it is admitted
before all others, and every sequence behind it makes room for it.

**Making room.** A running sequence that lacks a block takes those of the last in order, and is itself preempted if it
is the last. A waiting one takes the place (slot, blocks, turn) of running ones with strictly larger ``order`` only, and
only if that suffices to admit it. A preempted sequence waits again with nothing computed; its full blocks stay in the
prefix tree as long as nobody needs them, so recomputing is mostly a prefix hit.

**The budget.** In queue order, each row takes what it wants but leaves one token for each decoding row behind it.
Drafts are the first to be cut: they may use what the decoding rows leave, only half of it while a prompt could use it
as well, and never a block that a row behind them needs.

**Running behind the device.** `plan` counts its own steps as run: the next plan may be made, and launched, before the
host has read the results of the last one. Until `commit` brings these, a sequence's newest token is known to the device
alone (`Sequence.unread`). It is enough to know how many there are at most: a row with drafts may decide fewer tokens than
it has drafts, so until its commit the sequence counts as having got all. Positions are then upper bounds, for which
blocks are reserved; where the sequence really is, the device knows, and so does the host after the commit. When a sequence turns out to have ended, or has lost its place meanwhile,
the rows that it still has in launched steps are dropped. Freed blocks and slots need no care: steps run on the device in
the order of their launch, so a block's next owner writes after its last reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import chain, count

from draftline.engine.cache_journal import CacheJournal
from draftline.engine.request.sequence import Plan, Sequence
from draftline.engine.scheduling.cache_manager import Residency
from draftline.engine.scheduling.planner import DraftLength, Planner
from draftline.engine.scheduling.queue import SequenceQueue, rank


def no_drafts(sequence: Sequence) -> int:
    """Plain decoding: no drafts for anyone."""
    return 0


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """The scheduler's state, and its counts since the start.

    Attributes:
        running: sequences with a slot.
        waiting: sequences without one.
        free_blocks: cache blocks whose contents mean nothing.
        cached_blocks: blocks that no sequence holds but a prefix hit can use.
        total_blocks: all blocks.
        preemptions: how often a sequence lost its place.
        prefix_hit_tokens: prompt tokens that were found in the cache at first admissions.
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
    """Plans steps over a paged cache. One thread calls it; only `Sequence.cancelled` may be set by others."""

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
        """An idle scheduler.

        Args:
            num_blocks: cache blocks.
            block_size: tokens a block.
            num_slots: most sequences that run at once.
            token_budget: most tokens, drafts included, that one step computes.
            max_model_len: longest sequence, in tokens.
            prefix_caching: whether computed blocks are kept for prompts that begin alike.

        Raises:
            ValueError: a size is less than one.
        """
        if token_budget < 1:
            raise ValueError(f"token_budget: must be at least 1, not {token_budget}")
        self._residency = Residency(num_blocks, block_size, num_slots, prefix_caching)
        self._waiting = SequenceQueue()
        self._followers: dict[Sequence, list[Sequence]] = {}
        self._token_budget = token_budget
        self._longest = min(max_model_len, num_blocks * block_size + 1)
        self._arrivals = count()

    @property
    def journal(self) -> CacheJournal:
        """What the prefix tree knows; any thread may follow it."""
        return self._residency.journal

    @property
    def running(self) -> Iterable[Sequence]:
        """The sequences that hold a slot, in queue order."""
        return self._residency.running

    @property
    def longest(self) -> int:
        """The longest sequence, in tokens, that can run to its end. Its last token needs no place in the cache."""
        return self._longest

    def fits(self, prompt_len: int, max_len: int) -> bool:
        """Whether a sequence with this prompt can run until it has ``max_len`` tokens."""
        return 1 <= prompt_len < max_len <= self._longest

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence. If it can share blocks with its leader, it waits until the leader's prompt is computed.

        Raises:
            ValueError: it does not fit, was added before, or its leader was not.
        """
        name = sequence.name
        if not self.fits(sequence.prompt_len, sequence.max_len):
            raise ValueError(
                f"{name}: a prompt of {sequence.prompt_len} tokens, to end at {sequence.max_len}, does not fit: "
                f"at most {self._longest} tokens can run"
            )
        if sequence.arrival >= 0:
            raise ValueError(f"{name}: was added before")
        leader = sequence.leader
        if leader is not None and leader.arrival < 0:
            raise ValueError(f"{name}: its leader was not added")
        sequence.arrival = next(self._arrivals)
        nothing_to_share = not self._residency.pool.shareable(sequence.prompt_len - 1)
        if leader is None or leader.finished or leader.output_len or nothing_to_share:
            self._waiting.add(sequence)
        else:
            self._followers.setdefault(leader, []).append(sequence)

    def plan(self, draft_len: DraftLength = no_drafts) -> Plan:
        """Decide the next step: end cancelled sequences, then give running and waiting ones their tokens and blocks.

        Blocks are reserved for the longest outcome of the step: every row's ``start + count + drafts`` tokens. The plan
        must be committed, after all earlier ones.

        Args:
            draft_len: how many drafts a sequence would like; it may get fewer, and never more than could be accepted
                before its ``max_len``.
        """
        cancelled = tuple([sequence for sequence in self._all() if sequence.cancelled])
        for sequence in cancelled:
            self.finish(sequence)
        running, admitted = Planner(self._residency, self._waiting, self._token_budget, draft_len).rows()
        rows = running + admitted
        for row in rows:
            sequence = row.sequence
            sequence.computed += row.count + row.drafts
            sequence.unread += row.samples
            sequence.launched += 1
        return Plan(rows, admitted, self._residency.take_changes(rows), cancelled)

    def commit(self, plan: Plan, sampled: Seq[Seq[int]]) -> None:
        """Take in a step's results: ``sampled`` has each row's accepted tokens, none where the row did not sample.

        The caller decides what ends a sequence: it cuts the accepted tokens there and calls `finish` after this. A row
        whose sequence has finished meanwhile is dropped. Blocks reserved for drafts that were rejected stay with the
        sequence, whose next tokens go there.

        Raises:
            ValueError: a row has tokens that its plan cannot have decided.
        """
        residency, followers = self._residency, self._followers
        for row, accepted in zip(plan.rows, sampled, strict=True):
            sequence = row.sequence
            sequence.launched -= 1
            if sequence.finished:
                continue
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
            # One that was preempted after the launch has no blocks any more that could be registered.
            if sequence.slot is not None and computed // residency.block_size > sequence.registered:
                residency.register(sequence, computed)
            if followers and computed >= sequence.prompt_len:
                self._free_followers(sequence)

    def finish(self, sequence: Sequence) -> None:
        """End a sequence, wherever it is, and release all it holds. Full computed blocks stay in the prefix tree.

        Ending it twice does nothing.
        """
        if sequence.finished:
            return
        sequence.finished = True
        if sequence.slot is not None:
            self._residency.vacate(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)
        elif sequence.arrival >= 0 and sequence.leader in self._followers:
            self._followers[sequence.leader].remove(sequence)
        self._free_followers(sequence)

    def block_generation(self, block: int) -> int:
        """See `BlockPool.generation`."""
        return self._residency.pool.generation(block)

    def forget_prefixes(self) -> None:
        """Free the blocks that only the prefix tree keeps. Those of running sequences stay known."""
        self._residency.pool.forget_cached()

    def stats(self) -> SchedulerStats:
        """The state now. Any thread may ask; the numbers may then be of moments a step apart."""
        residency, pool = self._residency, self._residency.pool
        return SchedulerStats(
            running=len(residency.running),
            waiting=len(self._waiting) + sum(map(len, list(self._followers.values()))),
            free_blocks=pool.free,
            cached_blocks=pool.cached,
            total_blocks=pool.num_blocks,
            preemptions=residency.preemptions,
            prefix_hit_tokens=residency.prefix_hit_tokens,
            prefix_query_tokens=residency.prefix_query_tokens,
        )

    def check(self) -> None:
        """Assert all invariants, between steps. Takes time in proportion to the whole cache: for tests and soaks."""
        self._residency.check()
        for queue in (self._residency.running, self._waiting):
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

    def _all(self) -> Iterator[Sequence]:
        return chain(self._residency.running, self._waiting, *self._followers.values())

    def _free_followers(self, leader: Sequence) -> None:
        """Let those who waited for ``leader`` compete."""
        for follower in self._followers.pop(leader, ()):
            self._waiting.add(follower)
