"""A rank other than 0: ``python -m draftline.engine.parallel.follower SOCKET MEMORY WAKE``, which `Ranks` starts.

It has its part of the target, and of a draft model that the ranks share, caches for its heads, and a slot table. It
carries out each plan as rank 0's runner does, and gets drafts and samples from there.
"""

from __future__ import annotations

import logging
import os
import pickle
import resource
import signal
import sys
import threading
import time
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import Tensor

from draftline.engine.drafting.loaded import load_draft
from draftline.engine.errors import DeviceLostError
from draftline.engine.parallel.group import RankGroup, meet
from draftline.engine.parallel.messages import Alive, Broken, FromRank, Ready, StartRank
from draftline.engine.parallel.plan_codec import PlanDecoder
from draftline.engine.parallel.plan_ring import PlanReceiver
from draftline.engine.parallel.progress import Progress
from draftline.engine.parallel.sizes import agree_on_blocks
from draftline.engine.parallel.target import Target
from draftline.engine.request.sequence import Plan, Row
from draftline.engine.runner.capture import GraphRecorder
from draftline.engine.runner.device import rank_device
from draftline.engine.runner.eager import EagerExecutor
from draftline.engine.runner.executor import Executor, ExecutorParts, Executors, drafting
from draftline.engine.runner.memory import GIB, SMALLER_STEP, memory_explained
from draftline.engine.runner.ranks import draft_positions
from draftline.engine.runner.shapes import StepShape
from draftline.engine.runner.slot_writer import SlotWriter
from draftline.kernels import select_ops
from draftline.kernels.constraints import ConstraintTable
from draftline.kernels.slots import SampleRows, SamplingFeatures, SlotTable
from draftline.models.errors import ModelLoadError
from draftline.models.hidden_states import UnreadStates
from draftline.models.loader import open_checkpoint
from draftline.models.parallel.shard import PartialShard
from draftline.spec.drafter import DraftChunk, Drafter
from draftline.spec.no_drafter import NoDrafter

logger = logging.getLogger(__name__)

_ALIVE_S = 0.5

ANY = 1 << 62
"""What a rank says of a size that it does not limit."""


class ReceivedSamples:
    """The samples of a step, which rank 0 sends: the other ranks' `Ops.sample`."""

    def __init__(self, most: int, group: RankGroup, device: torch.device) -> None:
        """``most`` are the most samples of a step."""
        self._tokens = torch.zeros(most, dtype=torch.int64, device=device)
        self._group = group

    def receive(self, count: int) -> None:
        """Take the samples of this step, in stream order."""
        self._tokens[:count] = self._group.spread(self._tokens[:count])

    def __call__(self, logits: Tensor, rows: SampleRows, table: SlotTable) -> Tensor:
        """[S] int64, the samples."""
        return self._tokens[: logits.shape[0]]


class RankZerosDrafter(NoDrafter):
    """Stands for rank 0's drafter, whose drafts this rank receives.

    A drafter that reads the output of the target's last layer needs that of all tokens. Then every rank has to compute
    them.
    """

    def __init__(self, last_read: int) -> None:
        """``last_read`` is the last of the hidden states that rank 0's drafter reads; 0 if it reads none."""
        self.sink = UnreadStates((last_read,) if last_read else ())


class Follower:
    """Carries out plans."""

    def __init__(
        self, target: Target, executors: Executors, parts: ExecutorParts, samples: ReceivedSamples, group: RankGroup
    ) -> None:
        self._target, self._executors, self._table, self._samples = target, executors, parts.table, samples
        self._shares_drafter, self._group = parts.drafter.keeps_cache, group
        recorder = GraphRecorder(target.device, target.ops.settle) if executors.graphs else None
        self._slots = SlotWriter(parts.table, (), recorder)

    @property
    def memory(self) -> str:
        """What this rank holds, and the most that it has held, for the log."""
        model, device = self._target.model, self._target.device
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
        held = f"{model.nbytes / GIB:.2f} GiB of weights, {most:.2f} GiB of host memory at most"
        if device.type != "cuda":
            return held
        return f"{held}, {torch.cuda.max_memory_allocated(device) / GIB:.2f} GiB of {device}"

    @torch.inference_mode()
    def launch(self, plan: Plan, catch_up: tuple[DraftChunk, ...]) -> None:
        """The counterpart of `Runner.launch`."""
        rows = plan.rows
        self._slots.send(self._slots.collect(plan))
        if catch_up and self._shares_drafter:
            self._executors.for_catch_up(catch_up).catch_up(catch_up)
        if not rows:
            return
        if some := drafting(rows):
            if self._shares_drafter:
                self._executors.for_drafts(some).draft(some)
            self._receive_drafts(some)
        executor = self._executors.for_step(rows)
        forward = executor.forward(rows)
        self._samples.receive(sum([row.samples for row in rows]))
        executor.sample(rows, forward, SamplingFeatures.NONE)

    def _receive_drafts(self, rows: tuple[Row, ...]) -> None:
        slots, positions = draft_positions(rows, self._table)
        drafts = self._group.spread(torch.zeros_like(positions).flatten())
        self._table.tokens[slots, positions] = drafts.view(positions.shape).int()


def build_follower(start: StartRank, progress: Progress) -> Follower:
    """Load this rank's part. Rank 0 takes the same steps in `draftline.engine.loading`.

    Args:
        start: what this rank is.
        progress: its own.

    Raises:
        ModelLoadError: it cannot be loaded.
    """
    config = start.config
    device = rank_device(torch.device(start.device), start.rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(max(1, torch.get_num_threads() // config.tensor_parallel_size))
    group = RankGroup(meet(Path(start.store), start.rank, config.tensor_parallel_size), device, progress.advance)
    checkpoint = open_checkpoint(
        config.model, load_format=config.load_format, quantization=config.quantization, device=device
    )
    ops = select_ops(device, config.kernels)
    shard = PartialShard.of(checkpoint.config, group.collectives)
    target = Target.load(config, checkpoint, device, ops, shard)
    draft = None
    if config.draft_model is not None:
        draft = load_draft(config, checkpoint, ops, target.dtype, device, group.collectives)
    draft_block_bytes = 0 if draft is None else draft.block_bytes(config.block_size)
    max_drafts, last_read = group.least([ANY, 0])
    largest = target.largest_batch()
    most = max(target.step_tokens, config.max_num_seqs * (max_drafts + 1))
    samples = ReceivedSamples(most, group, device)
    # Constraints are rank 0's affair. Every slot is free in this table, which graphs of all executors expect.
    constraints = ConstraintTable.allocate(
        config.max_num_seqs, target.shape.vocab_size, words=64, masks=1, samples=1, device=device
    )
    shapes = target.shapes(max_drafts)

    def build_drafter(blocks: int) -> Drafter:
        return RankZerosDrafter(-last_read) if draft is None else draft.build(config, blocks, ops, constraints)

    def allocate(blocks: int, max_model_len: int) -> ExecutorParts:
        return target.allocate(blocks, max_model_len, shapes, constraints, samples, build_drafter, draft_block_bytes)

    graphs: dict[StepShape, Executor] = {}
    if device.type == "cuda" and config.uses_graphs:
        from draftline.engine.runner.warmup import load_kernels, rehearse
        from draftline.kernels.triton.compile.ahead import CompileAhead

        with (
            closing(CompileAhead(device)) as ahead,
            memory_explained(device, "the largest step", helps=SMALLER_STEP),
        ):
            if shard.is_sized_as_first:
                group.barrier()  # rank 0 compiles for this one, too
                ahead.missing = False
            rehearse(allocate(1, target.max_len), ahead, largest, every=False)
            load_kernels(ops, ahead, device)
            if not shard.is_sized_as_first:
                group.barrier()
    sizes = agree_on_blocks(target, group, largest, build_drafter, shapes, drafter_block_bytes=draft_block_bytes)
    shapes = sizes.shapes
    parts = allocate(sizes.blocks, sizes.max_model_len)
    if device.type == "cuda" and config.uses_graphs:
        from draftline.engine.runner.graphs.step_graphs import steps_in_parts
        from draftline.engine.runner.warmup import capture_graphs

        graphs, captures = capture_graphs(parts, steps_in_parts)
        captures.capture_all()
    executors = Executors(EagerExecutor(parts), shapes, graphs, target.uneven(parts.table, parts.cache))
    return Follower(target, executors, parts, samples, group)


class _Reports:
    """Sends messages to rank 0, and ends this process when rank 0's has ended."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, message: FromRank) -> None:
        with self._lock:
            self._connection.send_bytes(pickle.dumps(message))

    def watch(self) -> None:
        """Wait for the end of rank 0."""
        try:
            self._connection.recv_bytes()
        except (EOFError, OSError):
            os._exit(0)

    def beat(self) -> None:
        """Show that this rank lives."""
        while True:
            try:
                self.send(Alive())
            except OSError:
                os._exit(0)
            time.sleep(_ALIVE_S)


def main(descriptor: int, memory: int, wake: int) -> None:
    """Load, and carry out plans until rank 0 ends."""
    # A signal to the whole process group is rank 0's to handle: it lets requests finish first.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    connection = Connection(descriptor)
    start: StartRank = pickle.loads(connection.recv_bytes())
    reports = _Reports(connection)
    threading.Thread(target=reports.watch, name="draftline-leader", daemon=True).start()
    threading.Thread(target=reports.beat, name="draftline-alive", daemon=True).start()
    logging.basicConfig(level=start.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    started = time.monotonic()
    try:
        plans, decoder = PlanReceiver(memory, wake, start.rank - 1), PlanDecoder()
        progress = Progress(plans.progress, start.rank)
        follower = build_follower(start, progress)
        logger.info("rank %d ready in %.1f s: %s", start.rank, time.monotonic() - started, follower.memory)
        reports.send(Ready())
        while True:
            plan, catch_up = decoder.decode(plans.receive())
            progress.advance()
            follower.launch(plan, catch_up)
    except ModelLoadError as error:
        reports.send(Broken(error))
    except Exception as error:  # noqa: BLE001  rank 0 reports it
        reports.send(Broken(DeviceLostError(f"rank {start.rank} failed: {type(error).__name__}: {error}")))
    os._exit(1)  # its threads, and a device that may never answer, must not keep it


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
