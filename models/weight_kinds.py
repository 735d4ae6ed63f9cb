"""``weight_kinds``: a checkpoint's weights by kind.

Layers are alike, so one tensor of each kind tells about all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod

from draftline.models.checkpoints.checkpoint import Checkpoint
from draftline.models.families import weight_shapes
from draftline.quant.tensor import RawTensor


def weight_kinds(checkpoint: Checkpoint) -> Iterator[tuple[RawTensor, int]]:
    """One tensor of each kind, with the count of numbers in all tensors of that kind."""
    first: dict[str, str] = {}
    numbers: dict[str, int] = {}
    for name, shape in weight_shapes(checkpoint.config).items():
        if name in checkpoint:
            kind = re.sub(r"\d+", "", name)
            first.setdefault(kind, name)
            numbers[kind] = numbers.get(kind, 0) + prod(shape)
    for kind, name in first.items():
        yield checkpoint.tensor(name), numbers[kind]
