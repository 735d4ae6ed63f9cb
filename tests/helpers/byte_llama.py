"""A small random Llama over the tokens of `byte_tokenizer`, to train drafts for."""

from __future__ import annotations

import torch
import transformers
from byte_tokenizer import VOCAB


def byte_llama(*, tie_word_embeddings: bool) -> transformers.LlamaForCausalLM:
    """The same one at each call."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=0.3,
        tie_word_embeddings=tie_word_embeddings,
        eos_token_id=256,
    )
    return transformers.LlamaForCausalLM(config)
