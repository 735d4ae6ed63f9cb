"""How long steps take with and without drafts, measured at start by the runner that will run them."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product

import torch

from draftline.engine.params import SamplingParams
from draftline.engine.request.sequence import Plan, Row, Sequence
from draftline.engine.runner.runner import Runner
from draftline.kernels.slots import SlotTable
from draftline.spec.drafter import DraftChunk

Costs = dict[tuple[int, int], float]
"""Seconds of a step, by rows and drafts a row; with 0 for the rows, seconds of catching up with so many tokens."""

_CONTEXT = 256
"""Tokens of each sequence in the measured steps."""

_ENOUGH_S = 0.1
"""Seconds of a step's rounds, but for the first, after which no more follow. A disturbance matters less, the longer a
step takes."""

_LONG_S = 2.5
"""Seconds of all steps' rounds after which no step has another one: the engine's start waits for them."""


@dataclass(slots=True)
class _Step:
    """A step to time.

    Attributes:
        rows: its rows.
        catch_up: what the drafter reads before.
        taken: seconds of each round so far.
    """

    rows: tuple[Row, ...]
    catch_up: tuple[DraftChunk, ...] = ()
    taken: list[float] = field(default_factory=list)


@contextmanager
def own_blocks(
    runner: Runner, table: SlotTable, slots: int, tokens: int, block_size: int, blocks: int
) -> Iterator[None]:
    """Meanwhile the sequences of the measured steps have cache blocks of their own, as far as there are so many.

    Where all read the same block, a GPU's memory serves all at one place, and their steps take longer than others.

    Args:
        runner: launches the steps.
        table: the slot table, unused. It is left as it was.
        slots: how many of its first slots get blocks.
        tokens: the most tokens of a sequence, drafts included.
        block_size: tokens in a block.
        blocks: how many the cache has.
    """
    columns = min(-(-tokens // block_size), table.block_tables.shape[1])
    places = product(range(slots), range(columns))
    runner.fill((), tuple((slot, column, (slot * columns + column) % blocks) for slot, column in places))
    yield
    with torch.inference_mode():
        table.block_tables.zero_()


@torch.inference_mode()
def measure_costs(
    runner: Runner, table: SlotTable, known: int, row_counts: Iterable[int], draft_lens: Iterable[int], rounds: int
) -> Costs:
    """Time a step for each number of rows and drafts. The slot table must be unused, and is left as it was.

    Args:
        runner: launches the steps.
        table: the slot table.
        known: tokens of each sequence; see `measured_context`.
        row_counts: rows to measure.
        draft_lens: drafts a row to measure.
        rounds: how often each step is timed, or fewer times where it is long. The fastest counts: disturbances only
            make a step slower. For the same reason a step counts as no longer than one of as many rows with more
            drafts.
    """
    steps = {
        (count, drafts): _Step(tuple(_row(slot, known, drafts) for slot in range(count)))
        for count, drafts in product(row_counts, draft_lens)
    }
    _time(runner, table, steps.values(), rounds)
    fastest = {shape: min(step.taken) for shape, step in steps.items()}
    return {
        (count, drafts): min(taken for (rows, more), taken in fastest.items() if rows == count and more >= drafts)
        for count, drafts in fastest
    }


def caught_up_tokens(known: int) -> tuple[int, int]:
    """The two numbers of tokens of `measure_catch_up`, of sequences of ``known`` tokens."""
    return max(1, known // 8), max(2, known - 1)


@torch.inference_mode()
def measure_catch_up(runner: Runner, table: SlotTable, known: int, tokens: Iterable[int], rounds: int) -> Costs:
    """Time how long the drafter takes to read so many tokens of a sequence.

    The table and ``known`` are as for `measure_costs`.
    """
    rows = (_row(0, known, 0),)
    plain = _Step(rows)
    steps = {count: _Step(rows, (DraftChunk(0, 0, min(count, known - 1)),)) for count in tokens}
    _time(runner, table, [plain, *steps.values()], rounds)
    return {(0, count): max(1e-6, min(step.taken) - min(plain.taken)) for count, step in steps.items()}


def measured_context(table: SlotTable, max_drafts: int, max_positions: int | None) -> int:
    """How many tokens the sequences of the measured steps have.

    Args:
        table: the slot table.
        max_drafts: the most drafts of a sequence.
        max_positions: positions of the drafter; None where only the model limits them.
    """
    # The table has room for drafts behind the longest sequence, the model has no positions for them.
    room = table.tokens.shape[1] - 2 * max_drafts
    if max_positions is not None:
        room = min(room, max_positions - max_drafts)
    return max(1, min(_CONTEXT, room))


def _row(slot: int, known: int, drafts: int) -> Row:
    sequence = Sequence("cost", slot, [0] * known, 0, SamplingParams(temperature=0), seed=0, max_len=known)
    return Row(sequence, slot, known - 1, 1, known, drafts, drafts + 1)


def _time(runner: Runner, table: SlotTable, steps: Collection[_Step], rounds: int) -> None:
    """Time each step in so many rounds, and empty the slots.

    The steps take turns: what disturbs the machine for a moment disturbs one round of several steps, not all of one. It
    often is the first one: the device's libraries still prepare, or other engines start. A round that captures graphs
    tells nothing, since the device works meanwhile.
    """
    total = 0.0
    for _ in range(rounds + 1):
        for step in steps:
            is_known = len(step.taken) == rounds or sum(step.taken[1:]) >= _ENOUGH_S
            if is_known or (step.taken and total >= _LONG_S):
                continue
            runner.fill(step.rows)  # what the last round has accepted is forgotten
            _finish(table)
            taken = _seconds(runner, table, step)
            if taken is not None:
                step.taken.append(taken)
                total += taken
    table.lengths.zero_()
    table.tokens.zero_()


def _seconds(runner: Runner, table: SlotTable, step: _Step) -> float | None:
    """How long a step takes; None if graphs were captured for it.

    A GPU works while the host launches the next step. So there the step runs behind another one of the same rows, as in
    a busy engine, and the GPU's own events time it. By itself it would also take the time of its launch, and drafts
    would seem to take a smaller share.

    Where other ranks take part, it runs by itself: the tokens that the step before decides cannot be taken back there.
    """
    if table.tokens.device.type == "cpu" or runner.has_ranks:
        start = time.perf_counter()
        launched = runner.launch(Plan(step.rows), step.catch_up)
        launched.wait()
        return None if launched.capture_s else time.perf_counter() - start
    known = table.lengths.clone()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    steps = [runner.launch(Plan(step.rows))]
    table.lengths.copy_(known)
    begin.record()
    steps.append(runner.launch(Plan(step.rows), step.catch_up))
    end.record()
    end.synchronize()
    return None if any(launched.capture_s for launched in steps) else begin.elapsed_time(end) / 1e3


def _finish(table: SlotTable) -> None:
    if table.tokens.device.type == "cuda":
        torch.cuda.synchronize(table.tokens.device)
