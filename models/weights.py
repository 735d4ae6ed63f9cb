"""``Weights``: a checkpoint's tensors as a model's parts: projections, tables and vectors of the right shape."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from draftline import quant
from draftline.models.checkpoints.checkpoint import Checkpoint
from draftline.models.config import ModelConfig
from draftline.models.errors import ModelLoadError
from draftline.models.parallel.linear import Embedding
from draftline.models.parallel.shard import WHOLE, Shard
from draftline.models.weight_shapes import EMBEDDING, HEAD
from draftline.quant.linear import Linear
from draftline.quant.tensor import RawTensor


class Weights:
    """Reads a checkpoint's tensors, checks their shapes, and counts their memory.

    Several threads may read at the same time.

    Every method raises ModelLoadError if a tensor is missing or its shape differs from the configuration.

    Args:
        checkpoint: the tensors.
        dtype: of the weights.
        device: of the weights.
        scaled: see `quant.make_linear`.
        shard: the part of the model that ``checkpoint`` has.

    Attributes:
        dtype: of the weights.
        device: of the weights.
        shard: see the arguments.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        device: torch.device,
        *,
        scaled: bool,
        shard: Shard = WHOLE,
    ) -> None:
        self.dtype, self.device, self.shard = dtype, device, shard
        self._checkpoint, self._scaled = checkpoint, scaled
        self._formats: set[str] = set()
        self._sizes: list[int] = []

    @property
    def cache_dtype(self) -> torch.dtype:
        """The dtype of activations and cache."""
        return quant.compute_dtype(self.dtype, self.device)

    @property
    def formats(self) -> str:
        """The formats of the layers' projections, for reports."""
        return "+".join(sorted(self._formats))

    @property
    def nbytes(self) -> int:
        """Bytes of the embeddings and projections read so far."""
        return sum(self._sizes)

    def vector(self, name: str, size: int) -> Tensor:
        """A norm's weights, in the activations' dtype."""
        return quant.make_table(self._raw(name, size), dtype=self.cache_dtype, device=self.device)

    def vector_plus_one(self, name: str, size: int) -> Tensor:
        """A norm's weights that are stored minus 1 (Gemma), in float32: rounding the sum would lose precision."""
        return 1.0 + quant.make_table(self._raw(name, size), dtype=torch.float32, device=self.device)

    def positions(self, name: str, rows: int, columns: int) -> Tensor:
        """The first rows of a position embedding, which may have more rows than the model will run."""
        raw = self._checkpoint.tensor(name)
        if len(raw.shape) != 2 or raw.shape[0] < rows or raw.shape[1] != columns:
            raise ModelLoadError(f"{name}: has shape {list(raw.shape)}, the configuration says {[rows, columns]}")
        return self._table(raw)[:rows]

    def embedding_and_head(self, config: ModelConfig) -> tuple[Embedding, Linear]:
        """The token embedding and the output projection, which may be one tensor."""
        first, end = self.shard.vocabulary(config.vocab_size)
        shape = (end - first, config.hidden_size)
        embedding = self._raw(EMBEDDING, *shape)
        if config.tied_embeddings:
            self._check_tied(embedding)
            embedding = quant.unpacked(embedding.on(self.device))  # once for both
        head = self._head(embedding if config.tied_embeddings else self._raw(HEAD, *shape), scaled=self._scaled)
        return self.shard.embedding(self._table(embedding)), self.shard.joined(head)

    def _check_tied(self, embedding: RawTensor) -> None:
        """Files may have the output projection too, though it is the embedding, but not another one."""
        if HEAD not in self._checkpoint:
            return
        head = self._checkpoint.tensor(HEAD)
        if head.format != embedding.format or not torch.equal(head.data, embedding.data):
            raise ModelLoadError(
                f"{HEAD}: differs from {EMBEDDING}, though tie_word_embeddings says that they are one; say false, or "
                "remove the tensor"
            )

    def table(self, name: str, rows: int, columns: int) -> Tensor:
        """A table of vectors."""
        return self._table(self._raw(name, rows, columns))

    def dense_head(self, vocab: int, hidden: int) -> Linear:
        """The output projection, unpacked where it is quantized."""
        return self._head(replace(self._raw(HEAD, vocab, hidden), convert_to=None), scaled=False)

    def _head(self, raw: RawTensor, *, scaled: bool) -> Linear:
        head = quant.make_head(raw, dtype=self.dtype, device=self.device, scaled=scaled)
        self._sizes.append(head.nbytes)
        return head

    def linear(self, prefix: str, outputs: dict[str, int], inputs: int, *, bias: bool) -> Linear:
        """The projections ``prefix + name`` with these numbers of outputs, merged."""
        return self._linear(prefix, outputs, inputs, self._biases(prefix, outputs) if bias else None)

    def summed(self, prefix: str, name: str, outputs: int, inputs: int, *, bias: bool) -> Linear:
        """The projection ``prefix + name``, whose inputs are heads or channels: each rank has some of them."""
        biases = None
        if bias:
            biases = self._biases(prefix, {name: outputs}).to(device=self.device)
        return self.shard.summed(lambda own: self._linear(prefix, {name: outputs}, inputs, own), biases)

    def _biases(self, prefix: str, outputs: dict[str, int]) -> Tensor:
        return torch.cat([quant.dequantize(self._raw(f"{prefix}{name}.bias", size)) for name, size in outputs.items()])

    def _linear(self, prefix: str, outputs: dict[str, int], inputs: int, bias: Tensor | None) -> Linear:
        parts = [self._raw(f"{prefix}{name}.weight", size, inputs) for name, size in outputs.items()]
        linear = quant.make_linear(parts, bias, dtype=self.dtype, device=self.device, scaled=self._scaled)
        # A GGUF format stays the weights' format where another one runs faster: the values are those of the file.
        stored = {part.format for part in parts if part.data.dtype == torch.uint8 and part.convert_to is None}
        self._formats.update(stored or {linear.format})
        self._sizes.append(linear.nbytes)
        return linear

    def _table(self, raw: RawTensor) -> Tensor:
        table = quant.make_table(raw, dtype=self.dtype, device=self.device)
        self._sizes.append(table.nbytes)
        return table

    def _raw(self, name: str, *shape: int) -> RawTensor:
        raw = self._checkpoint.tensor(name)
        if raw.shape != shape:
            raise ModelLoadError(f"{name}: has shape {list(raw.shape)}, the configuration says {list(shape)}")
        return raw
