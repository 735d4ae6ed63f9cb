"""``FittedVocabulary``: a model with the rows of another one's vocabulary, where padding differs."""

from __future__ import annotations

from dataclasses import replace

from typing_extensions import override

from draftline.models.checkpoints.checkpoint import Checkpoint
from draftline.models.weight_shapes import EMBEDDING, HEAD
from draftline.quant.tensor import RawTensor


class FittedVocabulary(Checkpoint):
    """A checkpoint whose embedding and output projection have ``rows`` rows. Rows behind its own are zeros."""

    def __init__(self, checkpoint: Checkpoint, rows: int) -> None:
        self.config = replace(checkpoint.config, vocab_size=rows)
        self._checkpoint = checkpoint

    @override
    def __contains__(self, name: str) -> bool:
        return name in self._checkpoint

    @override
    def tensor(self, name: str) -> RawTensor:
        raw = self._checkpoint.tensor(name)
        return raw.with_rows(self.config.vocab_size) if name in (EMBEDDING, HEAD) else raw
