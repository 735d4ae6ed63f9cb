"""The weights that a Llama-like decoder's configuration implies: HF's names and layouts, with their shapes.

Other families' shapes are in their own files; ``families.weight_shapes`` covers all.
"""

from __future__ import annotations

from draftline.models.config import ModelConfig
from draftline.models.errors import ModelLoadError

Shape = tuple[int, ...]

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
"""The names of the token embedding and the output projection."""


def decoder_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Every weight of a Llama-like decoder by its HF name, in the order of the forward pass."""
    hidden, head_dim = config.hidden_size, config.head_dim
    shapes: dict[str, Shape] = {EMBEDDING: (config.vocab_size, hidden)}
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        shapes[f"{prefix}input_layernorm.weight"] = (hidden,)
        for name, rows, columns, bias in _projections(config):
            shapes[f"{prefix}{name}.weight"] = (rows, columns)
            if bias:
                shapes[f"{prefix}{name}.bias"] = (rows,)
        if config.qk_norm:
            shapes[f"{prefix}self_attn.q_norm.weight"] = (head_dim,)
            shapes[f"{prefix}self_attn.k_norm.weight"] = (head_dim,)
        shapes[f"{prefix}post_attention_layernorm.weight"] = (hidden,)
    shapes["model.norm.weight"] = (hidden,)
    if not config.tied_embeddings:
        shapes[HEAD] = (config.vocab_size, hidden)
    return shapes


def check_shape(wanted: Shape | None, name: str, shape: Shape, where: object) -> None:
    """Raise ModelLoadError unless the tensor ``name`` of file ``where`` has the wanted shape.

    None passes: a tensor that the configuration does not imply may belong to a quantized format.
    """
    if wanted is not None and shape != wanted:
        raise ModelLoadError(f"{where}: {name}: has shape {list(shape)}, but the configuration needs {list(wanted)}")


def _projections(config: ModelConfig) -> list[tuple[str, int, int, bool]]:
    """Name, rows, columns and whether there is a bias, of a layer's linears."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return [
        ("self_attn.q_proj", queries, hidden, config.qkv_bias),
        ("self_attn.k_proj", keys, hidden, config.qkv_bias),
        ("self_attn.v_proj", keys, hidden, config.qkv_bias),
        ("self_attn.o_proj", hidden, queries, config.output_bias),
        ("mlp.gate_proj", inner, hidden, config.mlp_bias),
        ("mlp.up_proj", inner, hidden, config.mlp_bias),
        ("mlp.down_proj", hidden, inner, config.mlp_bias),
    ]
