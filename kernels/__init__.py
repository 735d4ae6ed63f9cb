"""The operations of a step that have a device-specific form, and the choice between their implementations."""

from __future__ import annotations

import torch

from draftline.kernels.ops import Ops
from draftline.kernels.reference import ReferenceOps


def select_ops(device: torch.device) -> Ops:
    """The fastest implementation that ``device`` can run."""
    return ReferenceOps()
