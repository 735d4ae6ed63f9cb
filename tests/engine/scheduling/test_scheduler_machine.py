"""The scheduler under random load, with a fake device that reads nothing but its own cache through its block tables.

The fake model's next token is a function of the whole history as the cache has it. So a sequence's tokens come out as
if it ran alone only if every block it reads holds what it should, however blocks were shared and evicted, and sequences preempted and drafted for.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from zlib import crc32

import pytest
from examples import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from draftline.engine.params import SamplingParams
from draftline.engine.request.sequence import Plan, Sequence
from draftline.engine.scheduling.queue import rank
from draftline.engine.scheduling.scheduler import Scheduler

VOCAB = 3
MAX_MODEL_LEN = 24
END = 2
"""The token that ends a sequence, as an end-of-sequence token would."""


def next_token(history: Iterable[int]) -> int:
    """The fake model's next token after ``history``: mostly 0 and 1, so that prompts and outputs often begin alike."""
    value = crc32(bytes(history)) % 16
    return END if value == 0 else value % 2


def alone(prompt: list[int], max_len: int) -> list[int]:
    """The tokens of a sequence that has the model for itself."""
    tokens = list(prompt)
    while len(tokens) < max_len:
        tokens.append(next_token(tokens))
        if tokens[-1] == END:
            break
    return tokens


@dataclass
class FakeDevice:
    """A slot table and a paged cache, which holds tokens where a real one holds keys and values."""

    block_size: int
    tokens: dict[int, list[int]] = field(default_factory=dict)
    tables: dict[int, dict[int, int]] = field(default_factory=dict)
    cache: dict[tuple[int, int], int] = field(default_factory=dict)

    def run(self, plan: Plan, draft: Callable[[list[int], int], list[int]]) -> list[list[int]]:
        """One step: write all rows' tokens, then sample where a row reaches its last token, and accept drafts."""
        written: set[tuple[int, int]] = set()
        for row in plan.admitted:
            self.tables[row.slot] = {}
            self.tokens[row.slot] = list(row.sequence.tokens)
        for slot, index, block in plan.new_blocks:
            self.tables[slot][index] = block
        results: list[list[int]] = []
        for row in plan.rows:
            tokens = self.tokens[row.slot]
            assert len(tokens) <= row.known
            start = len(tokens) - 1 if row.count == 1 and row.samples else row.start
            guesses = draft(tokens, row.drafts)
            known = tokens[start : start + row.count]
            for position, token in enumerate([*known, *guesses], start):
                address = self.address(row.slot, position)
                assert address not in written, "two rows write to the same address"
                written.add(address)
                self.cache[address] = token
            results.append(self.sample(row.slot, start + row.count, guesses) if row.samples else [])
        return results

    def sample(self, slot: int, computed: int, guesses: list[int]) -> list[int]:
        history = [self.cache[self.address(slot, position)] for position in range(computed)]
        accepted = [next_token(history)]
        for guess in guesses:
            if guess != accepted[-1]:
                break
            history.append(guess)
            accepted.append(next_token(history))
        self.tokens[slot] += accepted
        return accepted

    def address(self, slot: int, position: int) -> tuple[int, int]:
        return self.tables[slot][position // self.block_size], position % self.block_size


class Engine:
    """A scheduler with the fake device, and checks of everything that a plan promises.

    Results are read ``steps_ahead`` steps late.
    """

    def __init__(
        self, scheduler: Scheduler, block_size: int, token_budget: int, seed: int = 0, steps_ahead: int = 0
    ) -> None:
        self.steps_ahead = steps_ahead
        self.in_flight: deque[tuple[Plan, list[list[int]]]] = deque()
        self.scheduler = scheduler
        self.token_budget = token_budget
        self.device = FakeDevice(block_size)
        self.random = random.Random(seed)
        self.live: list[Sequence] = []
        self.cancelled = set[Sequence]()

    def add(self, sequence: Sequence) -> None:
        self.scheduler.add(sequence)
        self.live.append(sequence)

    def cancel(self, sequence: Sequence) -> None:
        self.scheduler.cancel(sequence)
        self.cancelled.add(sequence)

    def draft(self, tokens: list[int], length: int) -> list[int]:
        """Drafts that are right most of the time."""
        guesses: list[int] = []
        for _ in range(length):
            right = next_token([*tokens, *guesses])
            guesses.append(right if self.random.random() < 0.7 else self.random.randrange(VOCAB))
        return guesses

    def step(self, draft_len: int) -> None:
        before = {sequence: sequence.preemptions for sequence in self.live}
        to_cancel = self.cancelled.intersection(self.live)
        plan = self.scheduler.plan(lambda _: draft_len)
        self.scheduler.check()
        assert set(plan.cancelled) == to_cancel
        self.live = [sequence for sequence in self.live if sequence not in to_cancel]
        self.check_plan(plan, draft_len)
        self.check_order(plan, [sequence for sequence in self.live if sequence.preemptions > before[sequence]])
        self.in_flight.append((plan, self.device.run(plan, self.draft)))
        while len(self.in_flight) > (self.steps_ahead if plan.rows else 0):
            self.read()

    def read(self) -> None:
        """Commit the oldest step in flight, and finish the sequences that have ended."""
        plan, accepted = self.in_flight.popleft()
        kept = [tokens[: tokens.index(END) + 1] if END in tokens else tokens for tokens in accepted]
        running = [row.sequence for row in plan.rows if not row.sequence.finished]
        self.scheduler.commit(plan, kept)
        self.scheduler.check()
        for sequence in running:
            assert len(sequence.tokens) <= sequence.max_len
            if len(sequence.tokens) == sequence.max_len or (sequence.output_len and sequence.tokens[-1] == END):
                self.end(sequence)
                assert sequence.tokens == alone(sequence.tokens[: sequence.prompt_len], sequence.max_len)

    def end(self, sequence: Sequence) -> None:
        self.scheduler.finish(sequence)
        self.scheduler.check()
        self.live.remove(sequence)

    def check_plan(self, plan: Plan, draft_len: int) -> None:
        assert sum(row.count + row.drafts for row in plan.rows) <= self.token_budget
        assert len({row.slot for row in plan.rows}) == len(plan.rows)
        first_admitted = len(plan.rows) - len(plan.admitted)
        assert plan.admitted == plan.rows[first_admitted:], "admissions come last"
        for rows in (plan.rows[:first_admitted], plan.admitted):
            ranks = [rank(row.sequence) for row in rows]
            assert ranks == sorted(ranks)
        for row in plan.rows:
            sequence, end = row.sequence, row.start + row.count
            assert not sequence.finished
            assert (row.slot, end + row.drafts) == (sequence.slot, sequence.computed)
            assert row.count >= 1
            assert end <= row.known
            assert 0 <= row.drafts <= (draft_len if row.samples else 0)
            assert end + row.drafts < sequence.max_len
            assert end + row.drafts <= len(sequence.blocks) * self.device.block_size
            if row in plan.admitted and sequence.sampling.prompt_logprobs is not None and not sequence.output_len:
                assert row.start == 0

    def check_order(self, plan: Plan, preempted: list[Sequence]) -> None:
        """Preempted sequences come after all that run, and the first of all has a row."""
        running = [sequence for sequence in self.live if sequence.slot is not None]
        assert all(rank(victim) > rank(sequence) for victim in preempted for sequence in running)
        in_plan = {row.sequence for row in plan.rows}
        # Some can only wait for a step in flight: for their last token, or, once preempted, for their row's result.
        able = [
            s for s in self.live if s in in_plan or (s.known < s.max_len and (s.slot is not None or not s.in_flight))
        ]
        if not able:
            assert not plan.rows
            return
        assert plan.rows or self.in_flight
        running = [sequence for sequence in able if sequence.slot is not None]
        assert not running or min(running, key=rank) in in_plan
        first = min(able, key=lambda sequence: sequence.order)
        rivals = [s for s in self.live if s is not first and s.order <= first.order]
        assert first in in_plan or rivals

    def drain(self, draft_len: int) -> None:
        """Run until all sequences have ended, within a bound that depends on their lengths only."""
        followers = sum(sequence.leader is not None for sequence in self.live)
        bound = (1 + followers) * sum(sequence.max_len for sequence in self.live) + len(self.live)
        bound *= 1 + self.steps_ahead
        for _ in range(bound):
            if not self.live:
                break
            self.step(draft_len)
        assert not self.live, "a sequence never ends"
        while self.in_flight:
            self.read()
        stats = self.scheduler.stats()
        assert (stats.running, stats.waiting) == (0, 0)
        assert stats.free_blocks + stats.cached_blocks == stats.total_blocks
        self.scheduler.forget_prefixes()
        self.scheduler.check()
        assert self.scheduler.stats().free_blocks == stats.total_blocks


class SchedulerMachine(RuleBasedStateMachine):
    """Random arrivals, priorities, groups, steps, drafts, cancels and early ends, on tiny pools."""

    @initialize(
        num_blocks=st.integers(2, 20),
        block_size=st.integers(1, 4),
        num_slots=st.integers(1, 5),
        token_budget=st.one_of(st.integers(1, 4), st.integers(1, 16)),
        prefix_caching=st.sampled_from([True, True, True, False]),
        seed=st.integers(0, 1000),
        steps_ahead=st.integers(0, 2),
    )
    def start(
        self,
        num_blocks: int,
        block_size: int,
        num_slots: int,
        token_budget: int,
        prefix_caching: bool,
        seed: int,
        steps_ahead: int,
    ) -> None:
        scheduler = Scheduler(
            num_blocks=num_blocks,
            block_size=block_size,
            num_slots=num_slots,
            token_budget=token_budget,
            max_model_len=MAX_MODEL_LEN,
            prefix_caching=prefix_caching,
        )
        self.engine = Engine(scheduler, block_size, token_budget, seed, steps_ahead)
        self.longest = min(MAX_MODEL_LEN, num_blocks * block_size + 1)  # the longest sequence that can run
        self.requests = 0

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=16),
        max_tokens=st.integers(1, 10),
        urgency=st.integers(0, 6),
        outputs=st.sampled_from([1, 1, 1, 2, 3]),
        prompt_logprobs=st.sampled_from([None, None, None, 1]),
    )
    def add(self, prompt: list[int], max_tokens: int, urgency: int, outputs: int, prompt_logprobs: int | None) -> None:
        prompt = prompt[: self.longest - 1]
        max_len = min(len(prompt) + max_tokens, self.longest)
        leader = None
        self.requests += 1
        for index in range(outputs):
            sequence = Sequence(
                request_id=f"r{self.requests}",
                index=index,
                tokens=list(prompt),
                prompt_len=len(prompt),
                sampling=SamplingParams(prompt_logprobs=prompt_logprobs),
                seed=0,
                max_len=max_len,
                order=float(self.requests - urgency),
                leader=leader,
            )
            self.engine.add(sequence)
            leader = leader or sequence

    @rule(times=st.integers(1, 4), draft_len=st.one_of(st.just(0), st.integers(0, 4)))
    def step(self, times: int, draft_len: int) -> None:
        for _ in range(times):
            self.engine.step(draft_len)

    @precondition(lambda self: self.engine.live)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.engine.cancel(data.draw(st.sampled_from(self.engine.live)))

    @precondition(lambda self: self.engine.live)
    @rule(data=st.data())
    def finish_early(self, data: st.DataObject) -> None:
        self.engine.end(data.draw(st.sampled_from(self.engine.live)))

    @precondition(lambda self: self.engine.live)
    @rule(data=st.data())
    def fail_a_step(self, data: st.DataObject) -> None:
        plan = self.engine.scheduler.plan(lambda _: 2)
        for row in plan.rows:
            self.engine.end(row.sequence)
        self.engine.scheduler.commit(plan, [[] for _ in plan.rows])
        self.engine.live = [sequence for sequence in self.engine.live if not sequence.finished]

    @rule()
    def forget_prefixes(self) -> None:
        self.engine.scheduler.forget_prefixes()

    @invariant()
    def is_sound(self) -> None:
        self.engine.scheduler.check()
        stats = self.engine.scheduler.stats()
        assert stats.running + stats.waiting == len(self.engine.live)

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.drain(draft_len=2)


SchedulerMachine.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
TestSchedulerMachine = SchedulerMachine.TestCase


@pytest.mark.parametrize("prefix_caching", [True, False], ids=["caching", "no-caching"])
@pytest.mark.parametrize(
    ("draft_len", "steps_ahead"),
    [(0, 0), (0, 3), (3, 0), (3, 1), (3, 3)],
    ids=["plain", "ahead", "drafts", "drafts-ahead", "drafts-far-ahead"],
)
@pytest.mark.parametrize("token_budget", [3, 40], ids=["tight-budget", "wide-budget"])
def test_an_overloaded_engine_ends_all_sequences_with_the_right_tokens(
    prefix_caching: bool, draft_len: int, steps_ahead: int, token_budget: int
) -> None:
    rng = random.Random(token_budget + draft_len)
    scheduler = Scheduler(
        num_blocks=14,
        block_size=4,
        num_slots=6,
        token_budget=token_budget,
        max_model_len=50,
        prefix_caching=prefix_caching,
    )
    engine = Engine(scheduler, 4, token_budget, steps_ahead=steps_ahead)
    prompts = [[rng.randrange(2) for _ in range(rng.randrange(1, 30))] for _ in range(8)]
    for number in range(40):
        prompt = rng.choice(prompts)
        engine.add(
            Sequence(
                request_id=f"r{number}",
                index=0,
                tokens=list(prompt),
                prompt_len=len(prompt),
                sampling=SamplingParams(),
                seed=0,
                max_len=len(prompt) + rng.randrange(1, 20),
                order=number - rng.choice([0, 0, 10]),
            )
        )
        engine.step(draft_len)
    engine.drain(draft_len)
    stats = scheduler.stats()
    assert stats.preemptions > 0
    assert (stats.prefix_hit_tokens > 0) == prefix_caching
