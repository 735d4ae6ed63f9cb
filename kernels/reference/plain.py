"""``PlainOps``: the reference operations one by one, on any device (--kernels reference)."""

from __future__ import annotations

from draftline.kernels.reference.ops import ReferenceOps


class PlainOps(ReferenceOps):
    """`ReferenceOps` whose decoders are no TorchScript program on a CPU either: each operation is a call of its own."""

    scripted = False
