"""Which sequences draft how far: the policy of the server, within what requests allow."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from equality import GREEDY, prompts
from tiny import Client, alone, draft_model, tiny_core

from draftline.engine.drafting.costs import measure_catch_up, measure_costs, measured_context, own_blocks
from draftline.engine.drafting.policy import AdaptiveDrafting, FixedDrafting
from draftline.engine.params import SamplingParams, Speculation
from draftline.engine.request.sequence import Plan, Row, Sequence
from draftline.engine.runner.launched_step import LaunchedStep
from draftline.kernels.reference.ops import ReferenceOps
from draftline.kernels.slots import SlotTable
from draftline.spec.adaptive import DraftBudgets, VerifiedRow
from draftline.spec.drafter import DraftChunk
from draftline.spec.ngram import NGram
from draftline.spec.offers import DraftingRow
from draftline.spec.step_costs import CostTable

CHEAP = {(rows, drafts): 1.0 + 0.05 * drafts for rows in (1, 4) for drafts in range(5)}


def sequence(draft_tokens: int | None = None) -> Sequence:
    return Sequence("r", 0, [1], 1, SamplingParams(), 0, 99, 0.0, draft_tokens=draft_tokens)


def begin(drafting: AdaptiveDrafting | FixedDrafting, running: Iterable[Sequence]) -> None:
    running = list(running)
    for _ in range(4):  # a choice stands for some steps
        drafting.begin_step(running)


def test_fixed_drafts_are_cut_by_requests_and_off_where_too_many_run() -> None:
    drafting = FixedDrafting(3, max_rows=4)
    few = [sequence(), sequence(0), sequence(2), sequence(9)]
    begin(drafting, few)
    assert [drafting.draft_len(one) for one in few] == [3, 0, 2, 3]
    begin(drafting, [*few, sequence()])
    assert [drafting.draft_len(one) for one in few] == [0, 0, 0, 0]


def test_adaptive_drafts_follow_acceptance_and_requests_have_their_own_way() -> None:
    drafting = AdaptiveDrafting(DraftBudgets(CostTable(CHEAP)), max_drafts=4, max_rows=4)
    one, off, two = sequence(), sequence(0), sequence(2)
    begin(drafting, [one, off, two])
    assert drafting.exploring, "nothing is known of their acceptance"
    assert drafting.draft_len(one) > 0
    assert (drafting.draft_len(off), drafting.draft_len(two)) == (0, 2)
    for _ in range(400):
        drafting.observe([(one, 4, 0)])
    begin(drafting, [one, off, two])
    assert (drafting.draft_len(one), drafting.draft_len(two)) == (0, 2)
    begin(drafting, [sequence() for _ in range(5)])
    assert drafting.draft_len(two) == 0


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_the_step_that_ends_an_output_teaches_like_others(steps_ahead: int) -> None:
    """Else outputs that end in their first step with drafts would teach nothing."""
    seen: list[int] = []

    class Watched(DraftBudgets):
        def observe(self, verified: SequenceOf[VerifiedRow]) -> None:
            seen.extend(drafted for _, drafted, _ in verified)
            super().observe(verified)

    core = tiny_core(
        drafter=NGram(4, ReferenceOps()),
        steps_ahead=steps_ahead,
        policy=lambda _: AdaptiveDrafting(Watched(CostTable(CHEAP)), max_drafts=4, max_rows=4),
    )
    client = Client(core)
    for index in range(4):
        client.submit(str(index), [5, 6, 7, index], SamplingParams(max_tokens=12, temperature=0, ignore_eos=True))
    client.run()
    assert sum(seen) == core.stats().drafter.drafted > 0
    assert not core._policy._acceptances, "ended outputs are remembered"


def test_requests_that_never_ran_say_nothing_about_the_length_of_outputs() -> None:
    seen: list[float] = []

    class Recording(DraftBudgets):
        def choose(self, rows: SequenceOf[DraftingRow], steps: int = 4) -> list[int]:
            seen.extend(row.output for row in rows)
            return super().choose(rows, steps)

    drafting = AdaptiveDrafting(Recording(CostTable(CHEAP)), max_drafts=4, max_rows=4)
    begin(drafting, [sequence()])
    for _ in range(100):
        drafting.forget(sequence())
    begin(drafting, [sequence()])
    assert len(set(seen)) == 1


@pytest.mark.parametrize(("seconds", "stands"), [(0.0, 4), (0.39, 39), (9.0, 64)])
def test_a_choice_that_takes_long_stands_for_more_steps(seconds: float, stands: int) -> None:
    now, begun, chosen_at = 0.0, 0, []

    class Slow(DraftBudgets):
        def choose(self, rows: SequenceOf[DraftingRow], steps: int = 4) -> list[int]:
            nonlocal now
            now += seconds
            chosen_at.append(begun)
            return super().choose(rows, steps)

    drafting = AdaptiveDrafting(Slow(CostTable(CHEAP), prior=0.9), max_drafts=4, max_rows=4, clock=lambda: now)
    one = sequence()
    for _ in range(80):  # soon after which comes a probe without drafts
        begun += 1
        drafting.begin_step([one])
        assert drafting.draft_len(one) > 0
    assert [after - before for before, after in pairwise(chosen_at)][1:] == [stands] * (len(chosen_at) - 2)


class Clockwork:
    """A runner that notes the steps that it is asked to launch."""

    has_ranks = False

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.filled = 0
        self.captures = set[tuple[int, int]]()

    def fill(self, rows: tuple[Row, ...], new_blocks: tuple[tuple[int, int, int], ...] = ()) -> None:
        self.filled = len(rows)
        self.new_blocks = new_blocks

    def launch(self, plan: Plan, catch_up: tuple[DraftChunk, ...] = ()) -> SimpleNamespace:
        assert all(row.samples == row.drafts + 1 for row in plan.rows)
        assert len(plan.rows) == self.filled, "the rows' sequences are not in their slots"
        shape = len(plan.rows), plan.rows[0].drafts
        self.asked.append(shape)
        captures = shape in self.captures
        self.captures.discard(shape)
        return SimpleNamespace(capture_s=1e-3 if captures else 0.0, wait=lambda: None)


def test_costs_are_measured_for_every_shape_and_leave_the_table_clean() -> None:
    table = SlotTable.allocate(4, 60, 4, torch.device("cpu"))
    clockwork = Clockwork()
    costs = measure_costs(clockwork, table, measured_context(table, 2, None), (1, 4), (0, 2), rounds=2)
    assert clockwork.asked == [(1, 0), (1, 2), (4, 0), (4, 2)] * 2, "in turn"
    assert costs.keys() == {(1, 0), (1, 2), (4, 0), (4, 2)}
    assert min(costs.values()) > 0
    assert not table.lengths.any()


@pytest.mark.parametrize(("blocks", "apart"), [(40, True), (6, True), (5, False)])
def test_measured_sequences_have_blocks_of_their_own_as_far_as_there_are_some(blocks: int, apart: bool) -> None:
    """Two of 40 tokens, in three blocks of 16 each."""
    clockwork, table = Clockwork(), SlotTable.allocate(4, 60, 4, torch.device("cpu"))
    with own_blocks(clockwork, table, 2, tokens=40, block_size=16, blocks=blocks):
        pass
    assert [(slot, column) for slot, column, _ in clockwork.new_blocks] == [
        (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2),
    ]  # fmt: skip
    given = {block for *_, block in clockwork.new_blocks}
    assert given <= set(range(blocks))
    assert (len(given) == 6) == apart


def test_a_sequence_keeps_its_blocks_while_all_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = tiny_core(drafter=draft_model(2, noise=0.0))._runner
    table, launch = runner._table, runner.launch
    seen: list[list[int]] = []

    def launched(plan: Plan, catch_up: tuple[DraftChunk, ...] = ()) -> LaunchedStep:
        step = launch(plan, catch_up)
        seen.append(table.block_tables[0, :4].tolist())
        return step

    monkeypatch.setattr(runner, "launch", launched)
    with own_blocks(runner, table, 2, tokens=30, block_size=8, blocks=64):
        measure_costs(runner, table, 28, (1, 2), (0, 2), rounds=1)
        measure_catch_up(runner, table, 28, (3, 27), rounds=1)
    assert seen
    assert all(blocks == [0, 1, 2, 3] for blocks in seen), seen
    assert not table.block_tables.any()


def test_a_step_of_a_gpu_is_timed_behind_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the GPU's clock, from the end of the one before; and a step that captures is not timed, since it takes the host long."""

    class Device(Clockwork):
        """A GPU, on which each step takes 3 ms, and longer if the host launches it late."""

        now = 0.0

        def launch(self, plan: Plan, catch_up: tuple[DraftChunk, ...] = ()) -> SimpleNamespace:
            step = super().launch(plan, catch_up)
            self.now += 3.0 + 100 * step.capture_s
            return step

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.moment = device.now

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, end: Event) -> float:
            return end.moment - self.moment

    device = Device()
    device.captures = {(1, 0)}
    monkeypatch.setattr(torch.cuda, "Event", Event)
    costs = measure_costs(device, SlotTable.allocate(1, 60, 4, torch.device("meta")), 9, (1,), (0,), rounds=2)
    assert device.asked == [(1, 0)] * 6, "three rounds of two steps, the first of which captures"
    assert costs[1, 0] == pytest.approx(3e-3)


def test_a_step_of_several_ranks_is_timed_by_itself() -> None:
    """The other ranks keep what the step before has decided, and the next one would begin elsewhere there."""
    clockwork = Clockwork()
    clockwork.has_ranks, clockwork.captures = True, {(1, 0)}
    costs = measure_costs(clockwork, SlotTable.allocate(1, 60, 4, torch.device("meta")), 9, (1,), (0,), rounds=2)
    assert clockwork.asked == [(1, 0)] * 3, "the first captures"
    assert costs[1, 0] > 0


@pytest.mark.parametrize(("seconds", "times"), [(0.06, 3), (0.12, 2), (3.0, 1)])
def test_a_long_step_is_timed_fewer_times(monkeypatch: pytest.MonkeyPatch, seconds: float, times: int) -> None:
    """On a CPU with a large model, steps of drafts take seconds, and the engine's start waits for all of them."""
    clock = iter(range(100))
    monkeypatch.setattr(
        "draftline.engine.drafting.costs.time", SimpleNamespace(perf_counter=lambda: next(clock) * seconds)
    )
    clockwork = Clockwork()
    costs = measure_costs(clockwork, SlotTable.allocate(1, 60, 4, torch.device("cpu")), 60, (1,), (0,), rounds=3)
    assert clockwork.asked == [(1, 0)] * times
    assert costs[1, 0] == pytest.approx(seconds)


def test_a_first_round_that_other_engines_disturb_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step without drafts came first, and seemed to take ten times as long as one with drafts."""
    durations, now = iter([1.1, 0.6, 0.03, 0.04, 0.03, 0.04]), [0.0, 0.0]

    def perf_counter() -> float:
        now[1] += 1
        now[0] += next(durations) if now[1] % 2 == 0 else 0.0
        return now[0]

    monkeypatch.setattr("draftline.engine.drafting.costs.time", SimpleNamespace(perf_counter=perf_counter))
    table = SlotTable.allocate(1, 60, 4, torch.device("cpu"))
    costs = measure_costs(Clockwork(), table, 20, (1,), (0, 2), rounds=3)
    assert costs == pytest.approx({(1, 0): 0.03, (1, 2): 0.04})


@pytest.mark.parametrize(
    ("speculation", "most"),
    [(Speculation(), 4), (Speculation(enabled=False), 0), (Speculation(draft_tokens=2), 2)],
    ids=["server's choice", "off", "shorter"],
)
def test_a_request_limits_its_own_drafts_and_nothing_else(speculation: Speculation, most: int) -> None:
    client = Client(tiny_core(drafter=NGram(4, ReferenceOps())))
    prompt = prompts(1, seed=2)[0]
    client.submit("one", prompt, GREEDY, speculation=speculation)
    output = client.run()["one"].outputs[0]
    assert output.token_ids == alone(prompt, GREEDY).outputs[0].token_ids
    assert output.finished is not None
    assert len(output.finished.speculation.accepted_by_position) == most


def test_a_step_counts_as_no_longer_than_one_of_more_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program slows a step in all rounds: the one of a draft seems longer than that of two."""
    seconds = {(1, 0): 5.0, (1, 1): 9.0, (1, 2): 6.0, (4, 0): 8.0, (4, 1): 8.5, (4, 2): 9.5}

    class Slowed(Clockwork):
        now = 0.0

        def launch(self, plan: Plan, catch_up: tuple[DraftChunk, ...] = ()) -> SimpleNamespace:
            self.now += seconds[len(plan.rows), plan.rows[0].drafts]
            return super().launch(plan, catch_up)

    clockwork, table = Slowed(), SlotTable.allocate(4, 60, 4, torch.device("cpu"))
    monkeypatch.setattr("draftline.engine.drafting.costs.time", SimpleNamespace(perf_counter=lambda: clockwork.now))
    assert measure_costs(clockwork, table, 40, (1, 4), (0, 1, 2), rounds=1) == seconds | {(1, 1): 6.0}
