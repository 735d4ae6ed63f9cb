"""``ModelConfig``: the shape of a decoder, independent of its file format."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3's frequency scaling (https://arxiv.org/abs/2407.21783; rope_type "llama3" in an HF config.json)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN's frequency scaling (Peng et al. 2023, https://arxiv.org/abs/2309.00071; rope_type "yarn").

    Attributes:
        factor: divides the frequencies that turn least.
        original_max_positions: the context that the model was trained for before.
        beta_fast: the frequencies that turn more often than this in the original context stay.
        beta_slow: those that turn less often are divided by the whole factor.
        magnitude: multiplies rotated queries and keys.
    """

    factor: float
    original_max_positions: int
    beta_fast: float
    beta_slow: float
    magnitude: float


RopeScaling = Llama3Scaling | YarnScaling


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a decoder-only transformer.

    Attributes:
        family: key into ``families.FAMILIES``.
        vocab_size: rows of the embedding.
        hidden_size: width of the residual stream.
        intermediate_size: width of the gated MLP.
        num_layers: decoder layers.
        num_heads: query heads.
        num_kv_heads: key/value heads.
        head_dim: size of one head.
        max_positions: the longest context that the model was trained for, in tokens.
        norm_eps: the norms' epsilon.
        rope_theta: base of the rotary frequencies; 0 where positions are learned.
        rope_scaling: the scaling of the rotary frequencies, or None.
        sliding_windows: per layer, the window in tokens, or None for full attention.
        qkv_bias: whether the query, key and value projections have biases.
        output_bias: whether the attention's output projection has a bias.
        mlp_bias: whether the MLP's projections have biases.
        qk_norm: whether queries and keys are normalised per head before rotation.
        tied_embeddings: whether the output projection is the embedding.
        bos_token_id: the beginning-of-sequence id, or None.
        eos_token_ids: the ids that end a sequence.
        local_rope_theta: base of the rotary frequencies of layers with a window, or None where it is ``rope_theta``.
        rope_factor: divides positions (linear scaling); not in layers with ``local_rope_theta``.
        attention_scale: multiplies attention scores, or None where it is ``head_dim ** -0.5``.
        attention_soft_cap: see `AttentionSpec`; 0 is none.
        logits_soft_cap: the same for the logits.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    sliding_windows: tuple[int | None, ...]
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tied_embeddings: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    local_rope_theta: float | None = None
    rope_factor: float = 1.0
    attention_scale: float | None = None
    attention_soft_cap: float = 0.0
    logits_soft_cap: float = 0.0

    @property
    def score_scale(self) -> float:
        """The factor of attention scores."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale
