"""The parts of an engine that no option replaces, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import torch

from draftline.engine.build import NO_SUBSTITUTES, Substitutes
from draftline.kernels.ops import Ops


def _vendor(device: torch.device, kernels: str) -> Ops:
    from draftline.engine.bench.ablation.vendor_ops import VendorOps  # imports Triton, which a CPU runs without
    from draftline.kernels.triton.device import DeviceLimits

    return VendorOps.sized(DeviceLimits.of(device))


def _reference_attention(device: torch.device, kernels: str) -> Ops:
    from draftline.engine.bench.ablation.vendor_ops import ReferenceAttentionOps
    from draftline.kernels.triton.device import DeviceLimits

    return ReferenceAttentionOps.sized(DeviceLimits.of(device))


_CHANGES: Mapping[str, Callable[[Substitutes], Substitutes]] = {
    "no-steps-ahead": lambda parts: replace(parts, steps_ahead=0),
    "vendor": lambda parts: replace(parts, ops=_vendor),
    "reference-attention": lambda parts: replace(parts, ops=_reference_attention),
}


def substitutes_of(names: Iterable[str]) -> Substitutes:
    """The parts with these names; the engine's own where there is no name."""
    parts = NO_SUBSTITUTES
    for name in names:
        parts = _CHANGES[name](parts)
    return parts
