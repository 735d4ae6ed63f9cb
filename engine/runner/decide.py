"""What a step's logits decide: constraints, sampling, acceptance, in the order of the device and without the host."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from draftline.kernels.constraints import ConstraintTable
from draftline.kernels.ops import Accept, Ops
from draftline.kernels.slots import Masks, SampleRows, SamplingFeatures, SlotTable


@dataclasses.dataclass(frozen=True, slots=True)
class Decider:
    """Everything but the rows.

    Attributes:
        ops: the device's operations.
        accept: verifies drafts.
        slots: the slot table.
        constraints: the constraint table.
    """

    ops: Ops
    accept: Accept
    slots: SlotTable
    constraints: ConstraintTable

    def decide(self, logits: Tensor, rows: SampleRows, starts: Tensor, most: int) -> tuple[Tensor, Tensor]:
        """The sampled tokens, and how many of its own each row keeps; the tables are brought up to date.

        Args:
            logits: [S, vocab].
            rows: what each decides; no masks yet.
            starts: [R + 1] int32, see `Ops.accept`.
            most: the most samples of a row.
        """
        if SamplingFeatures.MASK not in rows.features:
            tokens = self.ops.sample(logits, rows, self.slots)
            return tokens, self.accept(tokens, rows, starts, most, self.slots)
        constrained = self.ops.constrain(rows, starts, self.slots, self.constraints)
        masked = dataclasses.replace(rows, masks=Masks(self.constraints.masks, constrained.mask_rows))
        tokens = self.ops.sample(logits, masked, self.slots)
        accepted = self.accept(tokens, masked, starts, most, self.slots)
        self.ops.advance_constraints(tokens, accepted, masked, starts, constrained, self.constraints)
        return tokens, accepted
