"""``Constraining``: brings constraints to the device, as far as they have to be brought there.

Where an automaton enforces a constraint, the device needs to know its tables and, once a sequence enters a slot, its
state; from there on it goes by itself. Where anything else does, the host writes every mask, and has to know every draft,
since a mask behind a draft depends on it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from draftline.engine.request.constraints import OutputConstraint
from draftline.engine.request.sequence import Plan, Row, Sequence
from draftline.engine.runner.launched_step import LaunchedStep
from draftline.engine.runner.transfer import Readback, send, staging, upload
from draftline.kernels.constraints import FREE, HOST, ConstraintTable
from draftline.kernels.slots import SlotTable
from draftline.structured.arena import ConstraintArena
from draftline.structured.automaton.token_automaton import TokenAutomaton
from draftline.structured.masks import Verify, VerifyMasks


@dataclass(frozen=True, slots=True)
class _Proposed:
    """Drafts on their way to the host: each of the ``rows`` has as many as the one that has most."""

    rows: Seq[Row]
    readback: Readback
    tokens: Tensor

    def drafts(self) -> Iterator[tuple[Sequence, tuple[int, ...]]]:
        """Each sequence's, once they have arrived."""
        self.readback.wait()
        for row, tokens in zip(self.rows, self.tokens.view(len(self.rows), -1).tolist(), strict=True):
            yield row.sequence, tuple(tokens[: row.drafts])


class Constraining:
    """The constraint table, kept up to date with the plans. One thread uses it, the one that launches steps.

    Attributes:
        table: what the device knows.
    """

    def __init__(self, table: ConstraintTable, slots: SlotTable) -> None:
        """Both are new."""
        self.table = table
        self._slots = slots
        self._arena = ConstraintArena(table)
        self._device = table.words.device
        # By slot, whose automaton is in the arena for them.
        self._tenants: dict[int, tuple[Sequence, TokenAutomaton]] = {}
        self._written: set[int] = set()  # slots whose state is not FREE
        self._verify_masks = VerifyMasks()
        # Of the step that is being launched.
        self._unread: Seq[LaunchedStep] = ()
        self._drafts: dict[Sequence, tuple[int, ...]] = {}  # of the rows that the host masks
        self._proposed: _Proposed | None = None

    def apply(self, plan: Plan, unread: Seq[LaunchedStep] = ()) -> None:
        """Bring the slots that the plan's admitted rows enter up to date.

        Args:
            plan: of the step that is being launched.
            unread: the steps before it whose tokens the matchers have not been told.
        """
        self._unread, self._drafts, self._proposed = unread, {}, None
        changed = [row for row in plan.admitted if row.sequence.constraint is not None or row.slot in self._written]
        if not changed:
            return
        self._sweep()
        entries = [(row.slot, *self._enter(row)) for row in changed]
        slots, states, classes, ends = upload(np.array(entries, np.int64).T.copy(), self._device)
        self.table.states[slots] = states.int()
        self.table.classes[slots] = classes.int()
        self.table.ends[slots] = ends.int()

    def write_drafts(self, rows: Seq[Row]) -> None:
        """Write what is forced over what a drafter has proposed for the rows that the host masks, and read the rest."""
        forced: list[tuple[int, int, int]] = []
        unknown: list[Row] = []
        for row, constraint in _masked(rows):
            drafts = constraint.progress.forced(row.drafts)
            forced += [(row.slot, row.known + place, draft) for place, draft in enumerate(drafts)]
            self._drafts[row.sequence] = drafts
            if len(drafts) < row.drafts:
                unknown.append(row)
        if forced:
            slots, positions, tokens = upload(np.array(forced, np.int64).T.copy(), self._device)
            self._slots.tokens[slots, positions] = tokens.int()
        if unknown:
            most = max(row.drafts for row in unknown)
            places = [(row.slot, row.known + place) for row in unknown for place in range(most)]
            slots, positions = upload(np.array(places, np.int64).T.copy(), self._device)
            readback = Readback(self._device)
            proposed = readback.take(self._slots.tokens[slots, positions])
            readback.seal()
            self._proposed = _Proposed(unknown, readback, proposed)

    def write_masks(self, rows: Seq[Row]) -> None:
        """Write the masks of the rows that the host masks; the forward pass may run meanwhile.

        They depend on the drafts, and on what the steps before have decided: this waits for these, while the device goes
        on.
        """
        masked = list(_masked(rows))
        if not masked:
            return
        if self._proposed is not None:
            self._drafts.update(self._proposed.drafts())
        taken = self._taken()
        verifies: list[Verify] = []
        places: list[int] = []
        for row, constraint in masked:
            sequence = row.sequence
            drafts = self._drafts.get(sequence, ())
            verifies.append(Verify(constraint.progress.matcher, taken.get(sequence, ()), drafts))
            first = self.table.host_masks + row.slot * self.table.host_samples
            places += range(first, first + row.samples)
        masks = staging(len(places), self.table.masks.shape[1], dtype=torch.int32, device=self._device)
        self._verify_masks.fill(verifies, masks.numpy())
        self.table.masks[upload(np.array(places, np.int64), self._device)] = send(masks, self._device)

    def _taken(self) -> dict[Sequence, list[int]]:
        """What each sequence has got from the steps that are not read."""
        taken: dict[Sequence, list[int]] = defaultdict(list)
        for step in self._unread:
            step.wait()
            for row, tokens in zip(step.rows, step.accepted_tokens(), strict=True):
                taken[row.sequence] += tokens
        return taken

    def check(self) -> None:
        """Assert the arena's invariants (for tests)."""
        self._arena.check()

    def _enter(self, row: Row) -> tuple[int, int, int]:
        """The state, classes and end of a row's slot."""
        self._written.discard(row.slot)
        if row.slot in self._tenants:
            self._arena.leave(self._tenants.pop(row.slot)[1])
        constraint = row.sequence.constraint
        if constraint is None:
            return FREE, 0, 0
        self._written.add(row.slot)
        progress = constraint.progress
        if progress.automaton is None or constraint.on_host:
            return HOST, 0, 0
        place = self._arena.enter(*progress.automaton)
        if place is None:
            # All room is taken by automata in use. The host can walk this one as well.
            constraint.on_host = True
            return HOST, 0, 0
        self._tenants[row.slot] = row.sequence, progress.automaton[0]
        return place.address(progress.state), place.classes, constraint.closes_at or 0

    def _sweep(self) -> None:
        """Let go of the automata of sequences that have left their slots."""
        gone = [slot for slot, (sequence, _) in self._tenants.items() if sequence.finished or sequence.slot != slot]
        for slot in gone:
            self._arena.leave(self._tenants.pop(slot)[1])


def _masked(rows: Seq[Row]) -> Iterator[tuple[Row, OutputConstraint]]:
    """The rows that sample by masks of the host, with their constraints."""
    for row in rows:
        constraint = row.sequence.constraint
        if constraint is not None and constraint.on_host and row.samples:
            yield row, constraint
