"""``Checkpoint``: a model's configuration and its weights by name, whatever file they come from."""

from __future__ import annotations

from typing import Protocol

from draftline.models.config import ModelConfig
from draftline.quant.tensor import RawTensor


class Checkpoint(Protocol):
    """An opened checkpoint. Tensors have Llama's names and layouts in HF, also where the file has others."""

    config: ModelConfig

    def __contains__(self, name: str) -> bool:
        """Whether the checkpoint has this tensor."""
        ...

    def tensor(self, name: str) -> RawTensor:
        """Read one tensor. Several threads may read at the same time.

        Raises:
            ModelLoadError: it is missing or damaged; the message names the file and the tensor.
        """
        ...
