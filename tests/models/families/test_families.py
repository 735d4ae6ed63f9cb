"""Every family against transformers, in float32 on the CPU, through the paged cache in every kind of batch."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import transformers
from closeness import assert_model_close, nudged, rounding
from torch import Tensor
from typing_extensions import override

from draftline.kernels.batch import Batch, KVCache
from draftline.kernels.reference.ops import ReferenceOps
from draftline.kernels.slots import SlotTable
from draftline.models.checkpoints.checkpoint import Checkpoint
from draftline.models.families import build_model
from draftline.models.hidden_states import HiddenStateSink
from draftline.models.loader import open_checkpoint
from draftline.models.model import Model

CPU = torch.device("cpu")
BLOCK = 16
MAX_LEN = 192
VOCAB = 199

_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
}
_YARN: Any = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 512}
_LLAMA3_ROPE: Any = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

_GPT2: dict[str, Any] = {
    "vocab_size": VOCAB,
    "n_embd": 48,
    "n_layer": 3,
    "n_head": 6,
    "n_positions": 256,
    "initializer_range": 0.3,
}
_GEMMA3: dict[str, Any] = {
    **_SHAPE,
    "head_dim": 16,
    "query_pre_attn_scalar": 24,
    "sliding_window": 20,
    "sliding_window_pattern": 2,
    "initializer_range": 0.1,  # embeddings are scaled by the root of the width
}
_GEMMA3_ROPE: Any = {
    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 50_000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
}
_VISION: Any = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}

CONFIGS: dict[str, Callable[[], transformers.PreTrainedConfig]] = {
    "gemma3": lambda: transformers.Gemma3TextConfig(**_GEMMA3),
    "gemma3-rope": lambda: transformers.Gemma3TextConfig(**_GEMMA3, rope_parameters=_GEMMA3_ROPE),
    "gemma3-long-window": lambda: transformers.Gemma3TextConfig(**{**_GEMMA3, "sliding_window": 500}),
    "gemma3-untied-biases": lambda: transformers.Gemma3TextConfig(
        **_GEMMA3, tie_word_embeddings=False, attention_bias=True
    ),
    "gemma3-soft-caps": lambda: transformers.Gemma3TextConfig(
        **_GEMMA3, attn_logit_softcapping=2.0, final_logit_softcapping=3.0
    ),
    "gemma3-with-images": lambda: transformers.Gemma3Config(text_config=_GEMMA3, vision_config=_VISION),
    "gpt2": lambda: transformers.GPT2Config(**_GPT2),
    "gpt2-inner-unscaled": lambda: transformers.GPT2Config(
        **_GPT2,
        n_inner=80,
        scale_attn_weights=False,
        activation_function="gelu_pytorch_tanh",
        tie_word_embeddings=False,
    ),
    "llama": lambda: transformers.LlamaConfig(**_SHAPE),
    "llama-tied": lambda: transformers.LlamaConfig(**_SHAPE, tie_word_embeddings=True),
    "llama-biases": lambda: transformers.LlamaConfig(**_SHAPE, attention_bias=True, mlp_bias=True),
    "llama-llama3-rope": lambda: transformers.LlamaConfig(**_SHAPE, rope_parameters=_LLAMA3_ROPE),
    "llama-multi-head": lambda: transformers.LlamaConfig(**{**_SHAPE, "num_key_value_heads": 6}),
    "llama-multi-query": lambda: transformers.LlamaConfig(**{**_SHAPE, "num_key_value_heads": 1}),
    "mistral": lambda: transformers.MistralConfig(**_SHAPE, sliding_window=24),
    "mistral-head-dim": lambda: transformers.MistralConfig(**_SHAPE, sliding_window=None, head_dim=16),
    "mistral-linear-rope": lambda: transformers.MistralConfig(
        **_SHAPE, sliding_window=24, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
    ),
    "qwen2": lambda: transformers.Qwen2Config(**_SHAPE),
    "qwen2-windows": lambda: transformers.Qwen2Config(
        **_SHAPE, use_sliding_window=True, sliding_window=20, max_window_layers=1
    ),
    "qwen2-yarn": lambda: transformers.Qwen2Config(**_SHAPE, rope_parameters=_YARN | {"attention_factor": 1.3}),
    "qwen3": lambda: transformers.Qwen3Config(**_SHAPE, head_dim=32),
    "qwen3-yarn": lambda: transformers.Qwen3Config(**_SHAPE, head_dim=32, rope_parameters=_YARN),
    "qwen3-tied-windows": lambda: transformers.Qwen3Config(
        **_SHAPE,
        head_dim=12,
        tie_word_embeddings=True,
        use_sliding_window=True,
        sliding_window=17,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
}


class Paged:
    """Sequences in a slot table and a cache whose blocks are handed out in shuffled order."""

    def __init__(self, model: Model, ops: ReferenceOps, sequences: Sequence[Sequence[int]], seed: int = 0) -> None:
        self.model, self.ops = model, ops
        config = model.config
        max_blocks = -(-MAX_LEN // BLOCK)
        free = list(range(len(sequences) * max_blocks + 3))
        random.Random(seed).shuffle(free)
        self.slots = SlotTable.allocate(len(sequences) + 2, MAX_LEN, max_blocks, CPU)
        for slot, tokens in enumerate(sequences):
            self.write(slot, 0, tokens)
            blocks = [free.pop() for _ in range(max_blocks)]
            self.slots.block_tables[slot] = torch.tensor(blocks, dtype=torch.int32)
        self.cache = KVCache.allocate(
            config.num_layers,
            len(sequences) * max_blocks + 3,
            BLOCK,
            config.num_kv_heads,
            config.head_dim,
            dtype=model.dtype,
            device=CPU,
        )

    def write(self, slot: int, start: int, tokens: Sequence[int]) -> None:
        self.slots.tokens[slot, start : start + len(tokens)] = torch.tensor(tokens, dtype=torch.int32)

    def run(self, rows: Sequence[tuple[int, int, int]]) -> list[Tensor]:
        """Forward (slot, start, length) rows; the logits of every row's tokens."""
        lengths = tuple(length for _, _, length in rows)
        batch = self.batch(rows)
        with torch.inference_mode():
            return list(self.model.forward(batch, self.cache).split(lengths))

    def batch(self, rows: Sequence[tuple[int, int, int]]) -> Batch:
        lengths = tuple(length for _, _, length in rows)
        starts = tuple(start for _, start, _ in rows)
        slots = torch.tensor([slot for slot, _, _ in rows])
        return self.ops.gather(self.slots, slots, lengths, starts, lengths, BLOCK).batch


@dataclass(frozen=True)
class Case:
    """A transformers model, one that differs by roundings, and the same here, read from the files that transformers wrote."""

    reference: transformers.PreTrainedModel
    nudged: transformers.PreTrainedModel
    checkpoint: Checkpoint
    model: Model
    ops: ReferenceOps
    expected: dict[tuple[int, ...], tuple[Tensor, Tensor]] = field(default_factory=dict)

    def logits(self, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The reference's logits of some tokens, and those of the one that differs by roundings."""
        known = self.expected.get(tuple(tokens))
        if known is None:
            with torch.inference_mode():
                ids = torch.tensor([list(tokens)])
                known = self.reference(ids).logits[0], self.nudged(ids).logits[0]
            self.expected[tuple(tokens)] = known
        return known


def build(name: str, folder: Path) -> Case:
    config = CONFIGS[name]()
    torch.manual_seed(0)
    reference = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for parameter in reference.parameters():
        if parameter.ndim == 1:  # norms start as ones and biases as zeros, which would hide their absence
            parameter.data += 0.3 * torch.randn_like(parameter)
    reference.generation_config.eos_token_id = None
    reference.save_pretrained(folder)
    # transformers has the scores' soft cap among Gemma 3's options, but its model does not pass it on.
    models = reference, nudged(reference)
    if (cap := getattr(config, "attn_logit_softcapping", None)) is not None:
        for model in models:
            cast(Any, model).forward = partial(model.forward, softcap=cap)
    checkpoint = open_checkpoint(str(folder))
    ops = ReferenceOps()
    return Case(*models, checkpoint, build_model(checkpoint, checkpoint.config, ops, torch.float32, CPU), ops)


@pytest.fixture(scope="module", params=list(CONFIGS))
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return build(request.param, tmp_path_factory.mktemp("model"))


def random_tokens(count: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCAB) for _ in range(count)]


def assert_close(actual: Tensor, family: Case, tokens: Sequence[int], first: int = 0) -> None:
    """Logits of some tokens, from ``first`` on, are those of transformers."""
    assert_model_close(actual, *(logits[first:] for logits in family.logits(tokens)))


def test_whole_prompts_in_one_ragged_batch(family: Case) -> None:
    model, ops = family.model, family.ops
    sequences = [random_tokens(count, count) for count in (1, 65, 7, 130, 64, 16)]
    paged = Paged(model, ops, sequences)
    logits = paged.run([(slot, 0, len(tokens)) for slot, tokens in enumerate(sequences)])
    for tokens, actual in zip(sequences, logits, strict=True):
        assert_close(actual, family, tokens)


@pytest.mark.parametrize(
    "chunk", [pytest.param(1, marks=pytest.mark.slow), 5, pytest.param(16, marks=pytest.mark.slow), 40]
)
def test_chunks_of_any_size(family: Case, chunk: int) -> None:
    model, ops = family.model, family.ops
    count = 45
    tokens = random_tokens(count, 1)
    paged = Paged(model, ops, [tokens], seed=chunk)
    logits = [paged.run([(0, start, min(chunk, count - start))])[0] for start in range(0, count, chunk)]
    assert_close(torch.cat(logits), family, tokens)


def test_mixed_steps_of_chunks_decodes_and_verifies(family: Case) -> None:
    model, ops = family.model, family.ops
    rng = random.Random(3)
    sequences = [random_tokens(rng.randrange(40, 150), seed) for seed in range(5)]
    paged = Paged(model, ops, sequences)
    computed = [0] * len(sequences)
    collected: list[list[Tensor]] = [[] for _ in sequences]
    while any(done < len(tokens) for done, tokens in zip(computed, sequences, strict=True)):
        rows = []
        for slot in rng.sample(range(len(sequences)), len(sequences)):
            left = len(sequences[slot]) - computed[slot]
            if left and rng.random() < 0.8:
                rows.append((slot, computed[slot], min(left, rng.choice([1, 1, 5, 23, 64]))))
        if not rows:
            continue
        for (slot, _, length), logits in zip(rows, paged.run(rows), strict=True):
            collected[slot].append(logits)
            computed[slot] += length
    for tokens, pieces in zip(sequences, collected, strict=True):
        assert_close(torch.cat(pieces), family, tokens)


def test_greedy_tokens_equal_transformers(family: Case) -> None:
    """One forward of transformers over each whole output: by induction its greedy tokens are ours, if every one is.

    Where two logits are as close as roundings are apart, either may be greater.
    """
    model, ops = family.model, family.ops
    prompts = [random_tokens(count, 100 + count) for count in (3, 17, 30, 61, 90)]
    paged = Paged(model, ops, prompts)
    outputs: list[list[int]] = [[] for _ in prompts]
    rows = [(slot, 0, len(prompt)) for slot, prompt in enumerate(prompts)]
    for _ in range(20):
        for slot, logits in enumerate(paged.run(rows)):
            outputs[slot].append(int(logits[-1].argmax()))
        rows = []
        for slot, prompt in enumerate(prompts):
            end = len(prompt) + len(outputs[slot]) - 1
            paged.write(slot, end, outputs[slot][-1:])
            rows.append((slot, end, 1))
    for prompt, output in zip(prompts, outputs, strict=True):
        expected, of_nudged = (logits[len(prompt) - 1 : -1] for logits in family.logits([*prompt, *output]))
        behind = expected.max(dim=-1).values - expected.gather(1, torch.tensor(output)[:, None])[:, 0]
        assert behind.max() <= 2 * rounding(expected, of_nudged)
        assert behind.count_nonzero() <= 1


def test_only_the_wanted_logits_come_back(family: Case) -> None:
    model, ops = family.model, family.ops
    sequences = [random_tokens(20, 1), random_tokens(30, 2), random_tokens(9, 3)]
    paged = Paged(model, ops, sequences)
    lengths = tuple(len(tokens) for tokens in sequences)
    batch = ops.gather(paged.slots, torch.arange(3), lengths, (0, 0, 0), (0, 3, 1), BLOCK).batch
    with torch.inference_mode():
        logits = model.forward(batch, paged.cache)
    assert logits.shape[0] == 4
    assert_close(logits[:3], family, sequences[1], first=27)
    assert_close(logits[3:], family, sequences[2], first=8)


def test_a_prefix_that_another_sequence_computed(family: Case) -> None:
    """Blocks are shared, as with a hit in the prefix cache."""
    model, ops = family.model, family.ops
    shared = random_tokens(4 * BLOCK, 7)
    sequences = [shared + random_tokens(9, 8), shared + random_tokens(40, 9)]
    paged = Paged(model, ops, sequences)
    paged.slots.block_tables[1, :4] = paged.slots.block_tables[0, :4]
    assert_close(paged.run([(0, 0, 73)])[0], family, sequences[0])
    assert_close(paged.run([(1, 64, 40)])[0], family, sequences[1], first=64)


def test_max_positions_may_be_cut(family: Case) -> None:
    config = replace(family.model.config, max_positions=40)
    ops = ReferenceOps()
    paged = Paged(build_model(family.checkpoint, config, ops, torch.float32, CPU), ops, [random_tokens(40, 5)])
    assert_close(paged.run([(0, 0, 40)])[0], family, random_tokens(40, 5))


class KeptStates(HiddenStateSink):
    """Keeps every hidden state of each forward pass, by cache entry."""

    def __init__(self, layers: int, entries: int, hidden: int) -> None:
        self.layers = tuple(range(layers + 1))
        self.states = torch.full((entries, layers + 1, hidden), float("nan"))

    @override
    def write(self, states: Tensor, batch: Batch) -> None:
        assert states.shape[0] == batch.token_ids.shape[0]
        self.states[batch.cache_index] = states


def test_a_sink_receives_the_hidden_states(family: Case) -> None:
    """The residual stream before every layer is transformers', whatever the batch, and the logits stay the same."""
    tokens = [random_tokens(30, 1), random_tokens(21, 2)]
    paged = Paged(family.model, family.ops, tokens)
    config = family.model.config
    kept = KeptStates(config.num_layers, paged.cache.layers[0].keys[..., 0, 0].numel(), config.hidden_size)
    for rows in ([(0, 0, 17), (1, 0, 20)], [(0, 17, 13), (1, 20, 1)]):
        batch = paged.batch(rows)
        with torch.inference_mode():
            logits = family.model.forward(batch, paged.cache, kept)
            assert torch.equal(logits, family.model.forward(batch, paged.cache))
    for slot, ids in enumerate(tokens):
        with torch.inference_mode():
            expected = family.reference(torch.tensor([ids]), output_hidden_states=True).hidden_states
        index = paged.batch([(slot, 0, len(ids))]).cache_index
        states = kept.states[index]
        assert not states.isnan().any()
        # transformers gives the last one behind the final norm.
        for layer in range(config.num_layers):
            torch.testing.assert_close(states[:, layer], expected[layer][0], atol=2e-4, rtol=2e-4)
