"""The operations of a step that have a device-specific form, and the choice between their implementations."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from draftline.kernels.ops import Ops


def select_ops(device: torch.device, kernels: str = "auto") -> Ops:
    """The implementation of the operations for ``device``.

    Args:
        device: where they run.
        kernels: 'auto' is the fastest that the device can run, 'reference' plain torch, operation by operation.
    """
    # Imported here: `kernels.limits` must not load torch, and a CPU needs no Triton.
    if device.type == "cuda" and kernels == "auto":
        from draftline.kernels.triton.ops import TritonOps

        return TritonOps.for_device(device)
    from draftline.kernels.reference.ops import PlainOps, ReferenceOps

    return PlainOps() if kernels == "reference" else ReferenceOps()
