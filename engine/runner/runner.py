"""``Runner``: carries a plan out on the device. `Runner.launch` is one step of the engine, in the order that it runs.

The runner knows rows and slots. What a token means (text, stops, finishing) is decided on the host, in `streaming/`.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

import torch

from draftline.engine.request.sequence import Plan, Row
from draftline.engine.runner.capture import Captures, GraphRecorder
from draftline.engine.runner.executor import Executor, Executors, ForwardResult, SampleResult, WholeStep, drafting
from draftline.engine.runner.launched_step import LaunchedStep, read_back
from draftline.engine.runner.masks import NO_MASKS, ConstraintMasks, StepMasks
from draftline.engine.runner.memory import check_device
from draftline.engine.runner.profiler import StepProfiler
from draftline.engine.runner.ranks import ALONE, OtherRanks
from draftline.engine.runner.slot_writer import NO_WRITES, STEP_WRITES, SlotWriter
from draftline.engine.runner.transfer import EventPool
from draftline.kernels.ops import Ops
from draftline.kernels.slots import SlotTable
from draftline.spec.drafter import DraftChunk, Drafter


class Runner:
    """Launches steps, each on the state that the one before it leaves on the device.

    Attributes:
        captures: the graphs that are left to be captured while there is no step.
        profiler: records the steps, also the host's part of them.
    """

    def __init__(
        self,
        executors: Executors,
        table: SlotTable,
        masks: ConstraintMasks,
        ops: Ops,
        eos_ids: tuple[int, ...],
        drafter: Drafter,
        ranks: OtherRanks = ALONE,
        captures: Captures | None = None,
    ) -> None:
        """Everything is of one device.

        Args:
            executors: compute the steps.
            table: the slot table.
            masks: bring constraints to the device.
            ops: the device's operations.
            eos_ids: the model's end-of-sequence ids.
            drafter: the drafter of the executors.
            ranks: the other ranks of the engine.
            captures: the graphs of the executors that are not captured; None for none.
        """
        self._ranks = ranks
        self._executors = executors
        self._table = table
        self._ops = ops
        self._device = table.tokens.device
        self._slots = SlotWriter(table, eos_ids, GraphRecorder(self._device, ops.settle) if executors.graphs else None)
        self._masks = masks
        self._drafter = drafter
        self.captures = captures or Captures()
        self._arrivals = EventPool()
        self.profiler = StepProfiler()

    @property
    def has_ranks(self) -> bool:
        """Whether other ranks take part in each step."""
        return self._ranks.exchange

    @torch.inference_mode()
    def launch(
        self,
        plan: Plan,
        catch_up: Seq[DraftChunk] = (),
        in_flight: Seq[LaunchedStep] = (),
        let_others_run: Callable[[], object] = lambda: None,
    ) -> LaunchedStep:
        """Draft, forward, sample, accept: all on the device, in stream order.

        The host waits for nothing but grammar masks.

        Args:
            plan: the step.
            catch_up: known tokens that the drafter must see before it drafts.
            in_flight: the launched steps before this one that are not committed yet.
            let_others_run: called before a launch that takes longer than a millisecond: by operation, or with masks
                that wait for tokens. See `Core.when_launched`.
        """
        rows, part = plan.rows, self.profiler.part
        capturing = self.captures.seconds
        self._ranks.begin(plan, catch_up)
        # Bring the device's tables up to date: slots and blocks, constraints, the drafter's own cache.
        with part("upload"):
            masks = self._masks.begin(plan, in_flight)
            writes = self._slots.collect(plan)
            executor, whole = self._executor_of(rows, masks)
            # The graph of a whole step drafts, too, but not beside prompts.
            drafts_before = () if whole is None or whole.drafts else drafting(rows)
            # It also carries out a few writes itself, if nothing reads them before.
            if whole is None or catch_up or drafts_before or len(writes) > STEP_WRITES:
                self._slots.send(writes)
                writes = NO_WRITES
            if catch_up:
                self._executors.for_catch_up(catch_up).catch_up(catch_up)
        if executor is self._executors.eager or masks is not NO_MASKS:
            let_others_run()
        if drafts_before:
            with part("draft"):
                self._executors.for_drafts(drafts_before).draft(drafts_before)
        if whole is None:
            forward, samples = self._launch_parts(rows, executor, masks)
        else:
            with part("step"):
                forward, samples = whole.launch(rows, writes)
        with part("read_back"):
            step = read_back(rows, forward, samples, self._ops, self._arrivals)
        step.capture_s = self.captures.seconds - capturing
        return step

    def _executor_of(self, rows: tuple[Row, ...], masks: StepMasks) -> tuple[Executor, WholeStep | None]:
        """The executor of a step, and the step whole if nothing comes between its parts."""
        executor = self._executors.for_step(rows)
        if masks is not NO_MASKS or self._ranks.exchange:
            return executor, None
        return executor, executor.whole_step(self._slots.features(rows))

    def _launch_parts(
        self, rows: tuple[Row, ...], executor: Executor, masks: StepMasks
    ) -> tuple[ForwardResult, SampleResult]:
        """Launch a step part by part: between them the host may write masks, and ranks may exchange tokens."""
        part = self.profiler.part
        # Guess the next tokens of the decoding rows, then compute prompt chunks, decodes and verifies in one pass.
        with part("draft"):
            if some := drafting(rows):
                self._executors.for_drafts(some).draft(some)
                masks.write_drafts()
                self._ranks.spread_drafts(some, self._table)
        with part("forward"):
            forward = executor.forward(rows)
        with part("masks"):
            masks.write()  # the host's work, while the forward pass runs

        # Sample every position as plain decoding would, and keep the drafts that were sampled, too.
        with part("sample"):
            samples = executor.sample(rows, forward, self._slots.features(rows))
            self._ranks.spread_tokens(samples.tokens)
        return forward, samples

    @torch.inference_mode()
    def fill(self, rows: tuple[Row, ...], new_blocks: tuple[tuple[int, int, int], ...] = ()) -> None:
        """Let the rows' sequences enter their slots, and block tables get ``new_blocks``, without a step."""
        plan = Plan(admitted=rows, new_blocks=new_blocks)
        self._ranks.begin(plan)
        self._slots.send(self._slots.collect(plan))

    @torch.inference_mode()
    def forget_texts(self) -> None:
        """Let the drafter forget the texts of earlier sequences."""
        self._drafter.forget()

    def check_alive(self) -> None:
        """Raise `DeviceLostError` if another rank is lost."""
        self._ranks.check_alive()

    def when_lost(self, call: Callable[[], None]) -> None:
        """Call ``call`` once another rank is lost, from another thread; at once if one is."""
        self._ranks.when_lost(call)

    def close(self) -> None:
        """End the other ranks. Idempotent."""
        self._ranks.close()

    def check_device(self) -> None:
        """Raise `DeviceLostError` if the device computes nothing any more, or the other ranks cannot go on."""
        self._ranks.check()
        check_device(self._device)
