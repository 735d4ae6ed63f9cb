"""The warm-up of a GPU engine: find the kernels of all CUDA graphs, load them, then capture the largest graphs.

The others are captured once the engine serves and has nothing to do, or at their first use: their kernels are compiled
by then.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import torch

from draftline.engine.params import SamplingParams
from draftline.engine.request.sequence import Row, Sequence
from draftline.engine.runner.capture import Captures, CaptureTime, GraphRecorder, Late, Recorder, Rehearsal
from draftline.engine.runner.eager import EagerExecutor
from draftline.engine.runner.executor import Executor, ExecutorParts
from draftline.engine.runner.graphs.executor import GraphExecutor
from draftline.engine.runner.graphs.step_graphs import StepGraphs, result_stages, whole_steps
from draftline.engine.runner.shapes import StepShape
from draftline.engine.runner.slot_writer import SlotWriter
from draftline.kernels.batch import Batch
from draftline.kernels.ops import Ops
from draftline.kernels.slots import SamplingFeatures
from draftline.kernels.triton.compile.ahead import CompileAhead
from draftline.kernels.triton.compile.later import CompileLater
from draftline.models.brief import BriefModel

logger = logging.getLogger(__name__)


def rehearse(parts: ExecutorParts, ahead: CompileAhead, largest: Batch, *, every: bool) -> None:
    """Find out whether this machine lacks kernels. If so, other processes compile those of all graphs from now on.

    Nothing is computed: the cache may be smaller than the step.

    Args:
        parts: what the engine's steps run on.
        ahead: compiles kernels.
        largest: the largest step. If the machine has its kernels, it probably has those of the graphs.
        every: whether that is not enough, and the graphs are rehearsed too.
    """
    brief = replace(parts, model=BriefModel(parts.model))
    with ahead.rehearsal():
        parts.forward(largest)
        if ahead.missing or every:
            launch_graphs(brief, Rehearsal())
        if ahead.missing:
            parts.ops.launch_alternatives()
            SlotWriter(parts.table, (), Rehearsal())  # whose graph the runner captures
            with ahead.postponing():
                launch_further_sampling(brief, Rehearsal())
                launch_short_chunks(brief)


def load_kernels(ops: Ops, ahead: CompileAhead, device: torch.device) -> CompileLater:
    """Wait for the kernels of a rehearsal, and load them.

    Returns:
        The kernels of what few requests ask for, to be compiled once the engine serves; none if the machine lacked
        none.
    """
    started = time.monotonic()
    ahead.load()
    ops.settle()
    if ahead.missing:
        logger.info("waited %.1f s for kernels to be compiled", time.monotonic() - started)
    return CompileLater(device, ahead.postponed)


def capture_graphs(
    parts: ExecutorParts, steps: Callable[[GraphExecutor], list[Late[Any]]] = whole_steps
) -> tuple[dict[StepShape, Executor], Captures]:
    """The graph executors of all shapes, and their graphs that are left to be captured when there is time.

    Captured are the largest now, whose memory the others share. ``steps`` chooses the graphs of ordinary steps.
    """
    device, taken = parts.table.tokens.device, CaptureTime()
    graphs = StepGraphs(parts, GraphRecorder(device, parts.ops.settle, taken), steps)
    largest = graphs.largest()
    for graph in largest:
        graph.require()
    torch.cuda.synchronize(device)
    captures = Captures(graphs.common(), graphs.families(), taken)
    logger.info("%d CUDA graphs captured in %.1f s, and %d are left", len(largest), taken.seconds, captures.left)
    return dict(graphs.executors), captures


def launch_graphs(parts: ExecutorParts, recorder: Recorder) -> None:
    """Launch what is captured without being asked for, a step with constraints, and one in parts.

    So no request waits for their kernels. The largest come first: their kernels take longest to compile.
    """
    graphs = StepGraphs(parts, recorder)
    for graph in (*graphs.common()[::-1], *graphs.others()):
        graph.require()


# The launches of a rehearsal that are in no graph at the start.

FURTHER_FEATURES = (
    SamplingFeatures.PENALTIES,
    SamplingFeatures.LOGIT_BIAS,
    SamplingFeatures.MIN_TOKENS,
    SamplingFeatures.BAD_WORDS,
    SamplingFeatures.ALLOWED_IDS,
)
"""The sets of sampling features whose kernels are compiled after a start. A kernel knows few of the features, so these
are most kernels of other sets too."""

FURTHER_LOGPROBS = (0, 1, 5)
"""Counts of most likely tokens: that of none, the least, and OpenAI's limit for completions."""


def launch_further_sampling(parts: ExecutorParts, recorder: Recorder) -> None:
    """Launch the sampling that no graph has in advance, in steps of one row and of the most rows."""
    shapes = sorted(parts.shapes.decodes, key=lambda shape: shape.samples)
    for shape in (shapes[0], shapes[-1]):
        executor = GraphExecutor(shape, parts, recorder, recorder, result_stages(parts), EagerExecutor(parts))
        for features in FURTHER_FEATURES:
            executor.sampling_graph(features).require()
        for top in FURTHER_LOGPROBS:
            executor.launch_logprobs(top)


_SHORT_CHUNKS = (2, 5, 7, 9, 16, 32, 48, 64)
"""Tokens of a chunk. The last is for the head's kernel of so many logits, where there is one row only."""

_ROWS_OF_CHUNKS = (1, 8, 20)
"""Rows with such chunks, besides the most that the engine has."""

_OTHER_CHUNKS = (*((1, tokens) for tokens in (200, 300, 600, 1400, 2000, 2200)), (18, 9), (40, 2), (40, 5), (40, 16))
"""Rows and tokens: for the head's kernel of hundreds of logits, for products of hundreds and thousands of rows whose
launches overlap or do not, and for attention whose programs share no history, where launches overlap or a
multiprocessor runs several programs."""

_ROWS_WITH_LOGPROBS = 20
"""The most rows whose log-probabilities are wanted: enough for the head's kernel of most logits. Those of all rows
would take more memory than a small card has."""

_LONG_CHUNKS = (64, 512, 4096)
"""Tokens of a chunk beside short ones: launches overlap or do not, with few tiles and with many."""

_BESIDE_LONG = (1, 2, 17)
"""Tokens of a decode, and of short chunks with the least tile and the largest."""

_AMONG_DECODES = (17, 32)
"""Tokens of a short chunk whose tile is the largest: the states of as many decodes' tiles fit, or do not."""

_HISTORY = 1024
"""Tokens of a history that several programs share. They share neither a tile nor much longer ones, whose states would
not fit."""


def launch_short_chunks(parts: ExecutorParts) -> None:
    """Launch forward passes of short chunks of prompts with log-probabilities, alone and beside longer ones.

    No graph has them, and attention has kernels of their own for them.
    """
    executor, (max_rows, max_len) = EagerExecutor(parts), parts.table.tokens.shape
    for rows in (*[count for count in _ROWS_OF_CHUNKS if count < max_rows], max_rows):
        for count in _SHORT_CHUNKS:
            for history in (0, _HISTORY, max_len):
                executor.forward(_chunks(rows, count, history, max_len))
    for rows, count in _OTHER_CHUNKS:
        # Where no row has room for them, several have as many.
        several = -(-count // max_len)
        executor.forward(_chunks(min(rows * several, max_rows), -(-count // several), _HISTORY, max_len))
    for rows, count, history, longer in product(
        {1, max_rows - 1} - {0}, _BESIDE_LONG, (_HISTORY, max_len), _LONG_CHUNKS
    ):
        long = min(longer, max_len)
        slots = range(rows, min(rows + -(-longer // long), max_rows))
        executor.forward((*_chunks(rows, count, history, max_len), *(_prompt(slot, long) for slot in slots)))
    # A short chunk among many decodes: they have its tile, share histories or do not, and launches may still overlap.
    long = min(_LONG_CHUNKS[0], max_len)
    for rows, short in product({min(_OTHER_CHUNKS[-1][0], max_rows - 2), max_rows - 2}, _AMONG_DECODES):
        if rows > 0 and short <= max_len:
            chunk = _chunk(rows, short, short, SamplingParams(prompt_logprobs=0))
            executor.forward((*_chunks(rows, 1, _HISTORY, max_len), chunk, _prompt(rows + 1, long)))


def _chunks(rows: int, count: int, history: int, max_len: int) -> tuple[Row, ...]:
    """Rows that end prompts with ``count`` tokens."""
    known = min(history + count, max_len)
    samplings = [SamplingParams(prompt_logprobs=0 if slot < _ROWS_WITH_LOGPROBS else None) for slot in range(rows)]
    return tuple([_chunk(slot, known, min(count, known), sampling) for slot, sampling in enumerate(samplings)])


def _prompt(slot: int, count: int) -> Row:
    """A row that computes a prompt of ``count`` tokens."""
    return _chunk(slot, count, count, SamplingParams())


def _chunk(slot: int, known: int, count: int, sampling: SamplingParams) -> Row:
    """A row that ends a prompt of ``known`` tokens."""
    sequence = Sequence("warm-up", slot, [], known, sampling, seed=0, max_len=known + 1, order=0.0)
    return Row(sequence, slot, known - count, count, known, 0, 1)
