"""The parts of a Llama-like decoder: attention, gated MLP, layers, over `Ops` and `Linear`. Others share what fits.

They hold weights and call operations; what depends on the device or the weight format is behind those two.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from draftline.kernels.batch import Batch
from draftline.kernels.ops import Ops
from draftline.kernels.residual import Residual
from draftline.quant.linear import Linear


@dataclass(frozen=True, slots=True)
class Attention:
    """Self-attention over the paged cache.

    Attributes:
        qkv: merged query, key and value projection.
        output: the output projection.
        norms: the [D] weights that normalise queries and keys per head, or None.
        window: the sliding window in tokens, or None.
        scale: what scores are multiplied with.
        soft_cap: of the scores, see ``Ops.attention``; 0 is none.
    """

    qkv: Linear
    output: Linear
    norms: tuple[Tensor, Tensor] | None
    window: int | None
    scale: float
    soft_cap: float = 0.0

    def __call__(
        self,
        residual: Residual,
        norm: Tensor,
        following: Tensor | None,
        batch: Batch,
        keys: Tensor,
        values: Tensor,
        rope: Tensor,
        eps: float,
        ops: Ops,
        *,
        scales: tuple[Tensor, Tensor] | None = None,
    ) -> Residual:
        """The residual stream [T, hidden], with the attention of its norm added; it may be written over.

        Writes the batch's keys and values to the cache, and to an INT8 cache their ``scales``. ``following`` is the weight
        of the norm that reads the result.
        """
        qkv = self.qkv.norm_linear(residual, norm, eps, ops)
        attended = self.attend(qkv, batch, keys, values, rope, eps, ops, scales=scales)
        return self.output.linear_add(attended, residual, following, ops)

    def attend(
        self,
        qkv: Tensor,
        batch: Batch,
        keys: Tensor,
        values: Tensor,
        rope: Tensor,
        eps: float,
        ops: Ops,
        *,
        scales: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """What goes into the output projection, [T, H * D], of what the first one gave; it may be written over.

        Writes the batch's keys and values to the cache, and to an INT8 cache their ``scales``.
        """
        return ops.rope_attention(
            qkv,
            batch,
            rope,
            keys,
            values,
            self.norms,
            eps,
            scale=self.scale,
            window=self.window,
            soft_cap=self.soft_cap,
            scales=scales,
        )


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """SwiGLU (Shazeer 2020, https://arxiv.org/abs/2002.05202).

    Attributes:
        gate_up: merged gate and up projection.
        down: the down projection.
    """

    gate_up: Linear
    down: Linear

    def __call__(self, residual: Residual, norm: Tensor, following: Tensor | None, eps: float, ops: Ops) -> Residual:
        """The residual stream [T, hidden], with the MLP of its norm added; it may be written over.

        ``following`` is the weight of the norm that reads the result, where that is every row's.
        """
        return self.down.linear_add(self.gate_up.norm_swiglu(residual, norm, eps, ops), residual, following, ops)


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One pre-norm layer.

    Attributes:
        attention_norm: [hidden] weights of the norm before the attention.
        attention: the attention.
        mlp_norm: [hidden] weights of the norm before the MLP.
        mlp: the MLP.
    """

    attention_norm: Tensor
    attention: Attention
    mlp_norm: Tensor
    mlp: GatedMlp


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All of a decoder.

    Attributes:
        embedding: [vocab, hidden] token embeddings.
        layers: the layers.
        norm: [hidden] weights of the final norm.
        head: the output projection.
        rope: [max_positions, 2, D / 2] float32, see ``Ops.rope_write_kv``.
    """

    embedding: Tensor
    layers: tuple[DecoderLayer, ...]
    norm: Tensor
    head: Linear
    rope: Tensor
