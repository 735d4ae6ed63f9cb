"""A tokenizer of bytes in HF's files, and a folder of a tiny random model that has it."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>"
VOCAB = 259
"""256 bytes and three special tokens, of which the first ends a sequence."""


def write_byte_tokenizer(folder: Path, template: str | None = TEMPLATE) -> None:
    """Write tokenizer.json and tokenizer_config.json, with a chat template unless it is None."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({token: index for index, token in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|end|>", "<|user|>", "<|assistant|>"])
    backend.save(str(folder / "tokenizer.json"))
    chat = {} if template is None else {"chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>", **chat}))


def write_byte_model(folder: Path, template: str | None = TEMPLATE, *, positions: int = 512) -> str:
    """Write what ``load_format="dummy"`` needs for a Llama over bytes. Returns the folder's name."""
    write_byte_tokenizer(folder, template)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": positions,
        "rms_norm_eps": 1e-5,
        "eos_token_id": 256,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)
