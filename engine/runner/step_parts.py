"""``StepParts``: what steps run on, however they are launched."""

from __future__ import annotations

from dataclasses import dataclass

from draftline.engine.runner.masks import Constraining
from draftline.engine.runner.shapes import Buckets
from draftline.kernels.batch import KVCache
from draftline.kernels.ops import Accept, Ops
from draftline.kernels.slots import SlotTable
from draftline.models.model import Model
from draftline.spec.drafter import Drafter


@dataclass(frozen=True, slots=True)
class StepParts:
    """Everything is on one device.

    Attributes:
        model: the model.
        cache: its keys and values.
        table: the slot table.
        ops: the device's operations.
        drafter: drafts.
        accept: verifies what was drafted.
        constraining: brings constraints to the device.
        buckets: the shapes for which there are graphs.
    """

    model: Model
    cache: KVCache
    table: SlotTable
    ops: Ops
    drafter: Drafter
    accept: Accept
    constraining: Constraining
    buckets: Buckets
