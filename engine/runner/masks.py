"""``ConstraintMasks``: constraints on the device, as far as the host has to bring them there.

An automaton's tables are uploaded once, and its state when a sequence enters a slot; from there on the device walks it.
Any other constraint is walked on the host, which writes a mask for every sampled position. A mask behind a draft
depends on the draft, so the host has to know the drafts of such rows: those that the constraint forces it writes
itself, and the drafter's it reads back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from draftline.engine.request.constraints import OutputConstraint
from draftline.engine.request.sequence import Plan, Row, Sequence
from draftline.engine.runner.launched_step import LaunchedStep
from draftline.engine.runner.transfer import Arrival, EventPool, send, staging, to_host, upload
from draftline.kernels.constraints import FREE, HOST, ConstraintTable
from draftline.kernels.slots import SlotTable
from draftline.structured.automaton.arena import AutomatonArena
from draftline.structured.automaton.token_automaton import TokenAutomaton
from draftline.structured.masks import MaskedRow, fill_masks


class ConstraintMasks:
    """Keeps the constraint table up to date with the plans. Only the thread that launches steps uses it."""

    def __init__(self, constraints: ConstraintTable, table: SlotTable) -> None:
        """Both tables are new."""
        self._constraints = constraints
        self._table = table
        self._arena = AutomatonArena(constraints)
        self._device = constraints.words.device
        # The sequence and automaton by whose tables each slot is constrained.
        self._tenants: dict[int, tuple[Sequence, TokenAutomaton]] = {}
        self._written: set[int] = set()  # slots whose state is not FREE

    def begin(self, plan: Plan, in_flight: Seq[LaunchedStep] = ()) -> StepMasks:
        """Bring the slots that the plan's admitted rows enter up to date. The result writes the masks of this step.

        Args:
            plan: the step that is being launched.
            in_flight: the launched steps before it that the matchers have not seen the tokens of.
        """
        # Most steps admit nothing that is or was constrained: their table is up to date.
        changed = [row for row in plan.admitted if row.sequence.constraint is not None or row.slot in self._written]
        if changed:
            self._release_finished()
            entries = [(row.slot, *self._enter(row)) for row in changed]
            slots, states, classes, *ends = upload(np.array(entries, np.int64).T.copy(), self._device)
            self._constraints.states[slots] = states.int()
            self._constraints.classes[slots] = classes.int()
            self._constraints.ends[slots] = torch.stack(ends, dim=1).int()
        masked = [row for row in plan.rows if row.sequence.constraint is not None and _masked_on_host(row)]
        if not masked:
            return NO_MASKS
        return HostMasks(self._constraints, self._table, masked, in_flight)

    def _enter(self, row: Row) -> tuple[int, int, int, int]:
        """The state, classes and ends of a row's slot."""
        self._written.discard(row.slot)
        if row.slot in self._tenants:
            self._arena.release(self._tenants.pop(row.slot)[1])
        constraint = row.sequence.constraint
        if constraint is None:
            return FREE, 0, 0, 0
        self._written.add(row.slot)
        progress = constraint.progress
        tables = progress.tables
        if tables is None or constraint.on_host:
            return HOST, 0, 0, 0
        place = self._arena.acquire(tables.automaton, tables.drafts)
        if place is None:
            # Automata in use take all room of the table. The host can walk this one as well.
            constraint.on_host = True
            return HOST, 0, 0, 0
        self._tenants[row.slot] = row.sequence, tables.automaton
        return (
            place.address(progress.state),
            place.classes,
            constraint.closes_at or 0,
            constraint.reasoning_ends_at or 0,
        )

    def _release_finished(self) -> None:
        """Release the automata of sequences that have left their slots."""
        left = [slot for slot, (sequence, _) in self._tenants.items() if sequence.finished or sequence.slot != slot]
        for slot in left:
            self._arena.release(self._tenants.pop(slot)[1])


class StepMasks:
    """The host's masks of one step. This one is of a step that needs none."""

    def write_drafts(self) -> None:
        """Replace the drafts of rows that the host masks by the forced ones, and read back the others."""

    def write(self) -> None:
        """Write the masks of the rows that the host masks.

        They depend on the step's drafts and on the tokens of the steps in flight. Only here does the host wait for the
        device, which runs the forward pass meanwhile.
        """


NO_MASKS = StepMasks()


class HostMasks(StepMasks):
    """The masks of a step with rows that the host masks."""

    def __init__(
        self, constraints: ConstraintTable, table: SlotTable, rows: Seq[Row], in_flight: Seq[LaunchedStep]
    ) -> None:
        """``rows`` are those that the host masks, ``in_flight`` the launched steps whose tokens the matchers lack."""
        self._constraints = constraints
        self._table = table
        self._rows = rows
        self._in_flight = in_flight
        self._device = constraints.words.device
        self._drafts: dict[Sequence, tuple[int, ...]] = {}
        self._proposed: _ProposedDrafts | None = None

    @override
    def write_drafts(self) -> None:
        forced: list[tuple[int, int, int]] = []
        unknown: list[Row] = []
        for row in self._rows:
            if not row.drafts:
                continue
            drafts = _constraint_of(row).forced(row.drafts)
            forced += [(row.slot, row.known + index, draft) for index, draft in enumerate(drafts)]
            self._drafts[row.sequence] = drafts
            if len(drafts) < row.drafts:
                unknown.append(row)
        if forced:
            slots, positions, tokens = upload(np.array(forced, np.int64).T.copy(), self._device)
            self._table.tokens[slots, positions] = tokens.int()
        if unknown:
            self._proposed = _ProposedDrafts.read(unknown, self._table)

    @override
    def write(self) -> None:
        if self._proposed is not None:
            self._drafts.update(self._proposed.drafts())
        taken = self._taken()
        masked_rows: list[MaskedRow] = []
        mask_rows: list[int] = []
        for row in self._rows:
            sequence = row.sequence
            drafts = self._drafts.get(sequence, ())
            masked_rows.append(MaskedRow(_constraint_of(row).progress.matcher, taken.get(sequence, ()), drafts))
            first = self._constraints.host_masks + row.slot * self._constraints.host_samples
            mask_rows += range(first, first + row.samples)
        masks = staging(len(mask_rows), self._constraints.masks.shape[1], dtype=torch.int32, device=self._device)
        for index, error in fill_masks(masked_rows, masks.numpy()).items():
            _constraint_of(self._rows[index]).fault = error
        self._constraints.masks[upload(np.array(mask_rows, np.int64), self._device)] = send(masks, self._device)

    def _taken(self) -> dict[Sequence, list[int]]:
        """The tokens that each sequence got from the steps in flight."""
        taken: dict[Sequence, list[int]] = defaultdict(list)
        for step in self._in_flight:
            step.wait()
            for row, tokens in zip(step.rows, step.accepted_tokens(), strict=True):
                taken[row.sequence] += tokens
        return taken


@dataclass(frozen=True, slots=True)
class _ProposedDrafts:
    """Drafts on their way to the host. Each of the ``rows`` has as many tokens here as the row with the most drafts."""

    rows: Seq[Row]
    arrival: Arrival
    tokens: Tensor

    @staticmethod
    def read(rows: Seq[Row], table: SlotTable) -> _ProposedDrafts:
        """Begin to read the rows' drafts from the slot table."""
        device = table.tokens.device
        max_drafts = max(row.drafts for row in rows)
        indices = [(row.slot, row.known + index) for row in rows for index in range(max_drafts)]
        slots, positions = upload(np.array(indices, np.int64).T.copy(), device)
        tokens = to_host(table.tokens[slots, positions])
        return _ProposedDrafts(rows, Arrival(device, EventPool()), tokens)

    def drafts(self) -> Iterator[tuple[Sequence, tuple[int, ...]]]:
        """Each sequence's drafts, once they have arrived."""
        self.arrival.wait()
        for row, tokens in zip(self.rows, self.tokens.view(len(self.rows), -1).tolist(), strict=True):
            yield row.sequence, tuple(tokens[: row.drafts])


def _masked_on_host(row: Row) -> bool:
    """Whether the host writes the masks of a row with a constraint: it samples, and no automaton enforces it."""
    return row.samples > 0 and _constraint_of(row).on_host


def _constraint_of(row: Row) -> OutputConstraint:
    constraint = row.sequence.constraint
    assert constraint is not None, "the row has no constraint"
    return constraint
