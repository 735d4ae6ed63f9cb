"""``Executor``: one step on the device: catch up, draft, forward, sample. The host waits for none of them.

Two executors exist. `eager.EagerExecutor` launches operation after operation, for any rows. `graphs.GraphExecutor`
replays the CUDA graphs of one shape. `Executors` chooses between them. Constraint masks and times are the runner's
business.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from torch import Tensor

from draftline.engine.request.sequence import Row
from draftline.engine.runner.shapes import StepShape, StepShapes
from draftline.engine.runner.slot_writer import TableWrites
from draftline.engine.runner.timing import StepClock
from draftline.kernels.batch import Batch, KVCache
from draftline.kernels.constraints import ConstraintTable
from draftline.kernels.ops import Accept, AreUneven, Ops, Sample, never_uneven
from draftline.kernels.slots import Masks, SampleRows, SamplingFeatures, SlotTable
from draftline.models.model import Model
from draftline.spec.drafter import DraftChunk, Drafter


@dataclass(frozen=True, slots=True)
class ExecutorParts:
    """The parts of an engine that its executors share. All are on one device.

    Attributes:
        model: the target model.
        cache: its keys and values.
        table: the slot table.
        ops: the device's operations.
        drafter: proposes drafts.
        sample: samples; `Ops.sample`, or on a rank that does not sample, what gets the samples of the rank that does.
        accept: verifies drafts; `Ops.accept`, or its synthetic replacement in benchmarks.
        constraints: the constraint table.
        shapes: the step shapes that have graphs.
        clock: notes when the parts of a step with drafts begin and end.
    """

    model: Model
    cache: KVCache
    table: SlotTable
    ops: Ops
    drafter: Drafter
    sample: Sample
    accept: Accept
    constraints: ConstraintTable
    shapes: StepShapes
    clock: StepClock

    @property
    def block_size(self) -> int:
        """Tokens a cache block."""
        return self.cache.block_size

    def forward(self, batch: Batch) -> Tensor:
        """The target's logits of a batch, [S, vocab]. The drafter receives the hidden states that it wants."""
        return self.model.forward(batch, self.cache, self.drafter.sink)

    def sample_and_accept(
        self, logits: Tensor, rows: SampleRows, starts: Tensor, max_samples: int
    ) -> tuple[Tensor, Tensor]:
        """Apply constraints, sample, verify drafts, and bring the slot and constraint tables up to date.

        Args:
            logits: [S, vocab].
            rows: the position that each of them decides; its ``masks`` are filled in here.
            starts: [R + 1] int32, each row's first sample; see `Ops.accept`.
            max_samples: the most samples of a row.

        Returns:
            [S] int64 sampled tokens, and [R] int32, how many of its own each row keeps.
        """
        if SamplingFeatures.MASK not in rows.features:
            tokens = self.sample(logits, rows, self.table)
            return tokens, self.accept(tokens, rows, starts, max_samples, self.table)
        sample_constraints = self.ops.constrain(rows, starts, self.table, self.constraints)
        masked = dataclasses.replace(rows, masks=Masks(self.constraints.masks, sample_constraints.mask_rows))
        tokens = self.sample(logits, masked, self.table)
        accepted = self.accept(tokens, masked, starts, max_samples, self.table)
        self.ops.advance_constraints(tokens, accepted, masked, starts, sample_constraints, self.constraints)
        return tokens, accepted


class ForwardResult(NamedTuple):
    """The logits of a forward pass, and the token that each of them predicts. Valid until the next forward pass.

    Attributes:
        logits: [L, vocab], of every position that wants them, in the rows' order.
        slots: [L or more] int64, the slot of each, and then of a graph's padding.
        positions: [L or more] int64, the position of the token that each predicts, likewise.
    """

    logits: Tensor
    slots: Tensor
    positions: Tensor


class SampleResult(NamedTuple):
    """The tokens of a step.

    Attributes:
        tokens: [S] int64, sampled at each sampled position, in the rows' order. Valid until the next step.
        arriving: the same on the host, once the step has run. Valid until the step after the next is launched.
        arriving_counts: [R] integers, likewise: how many of its tokens each row keeps.
        arriving_moments: those of `StepClock`, likewise. A step without drafts has only the last one, or None.
    """

    tokens: Tensor
    arriving: Tensor
    arriving_counts: Tensor
    arriving_moments: Tensor | None


class WholeStep(Protocol):
    """A step whose parts are launched at once.

    Attributes:
        drafts: whether it drafts, too. If not, rows with drafts must have theirs before.
    """

    drafts: bool

    def launch(self, rows: tuple[Row, ...], writes: TableWrites) -> tuple[ForwardResult, SampleResult]:
        """Write to the slot table, at most `STEP_WRITES`, and then compute the step."""
        ...


class Executor(Protocol):
    """Computes a step, whole or in parts. All is launched in the device's order, without waiting for it."""

    def catch_up(self, chunks: Seq[DraftChunk]) -> None:
        """Bring the drafter's own cache up to date with some known tokens."""
        ...

    def whole_step(self, features: SamplingFeatures) -> WholeStep | None:
        """The step of rows that use at most these features; None if it is launched in parts, as below."""
        return None

    def draft(self, rows: tuple[Row, ...]) -> None:
        """Write drafts of the rows, which all want some, into the slot table."""
        ...

    def forward(self, rows: tuple[Row, ...]) -> ForwardResult:
        """Gather the rows' tokens and drafts from the slot table, and run the model on them."""
        ...

    def sample(self, rows: tuple[Row, ...], result: ForwardResult, features: SamplingFeatures) -> SampleResult:
        """Sample from the logits that this executor's `forward` left, accept drafts, and commit to the slot table.

        ``features`` are those that any of the rows uses.
        """
        ...


def drafting(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """The rows that want drafts."""
    return tuple([row for row in rows if row.drafts])


@dataclass(frozen=True, slots=True)
class Executors:
    """The executors of an engine: graphs for the shapes that have them, the eager one for all other rows.

    Attributes:
        eager: runs any rows.
        shapes: finds the shape that holds a step.
        graphs: by shape; empty on a CPU, and where graphs are switched off.
        are_uneven: decides whether decodes and drafts run in a shape for uneven histories.
    """

    eager: Executor
    shapes: StepShapes
    graphs: Mapping[StepShape, Executor] = field(default_factory=dict)
    are_uneven: AreUneven = never_uneven

    def for_step(self, rows: tuple[Row, ...]) -> Executor:
        """The executor that runs the step of these rows, or its ``forward`` and ``sample``."""
        return self._graph_of(self.shapes.of_step(rows, self.are_uneven)) if self.graphs else self.eager

    def for_catch_up(self, chunks: Seq[DraftChunk]) -> Executor:
        """The executor that lets the drafter catch up with these chunks."""
        return self._graph_of(self.shapes.of_chunks([chunk.count for chunk in chunks])) if self.graphs else self.eager

    def for_drafts(self, rows: tuple[Row, ...]) -> Executor:
        """The executor that drafts for these rows.

        Drafts depend on the drafting rows alone, whatever else the step computes.
        """
        return self._graph_of(self.shapes.of_drafts(rows, self.are_uneven)) if self.graphs else self.eager

    def _graph_of(self, shape: StepShape | None) -> Executor:
        return self.eager if shape is None else self.graphs[shape]
