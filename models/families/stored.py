"""The storage of a family's weights, where it differs from Llama's names and layouts in HF."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A tensor of a file as a weight of the model.

    Attributes:
        name: the weight's name in `Checkpoint`.
        transposed: whether the file has [in_features, out_features].
    """

    name: str
    transposed: bool = False
