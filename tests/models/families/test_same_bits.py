"""On a CPU a token's logits have the same bits however its sequence was computed and whatever else was in its batch.

That is what lets speculation, chunking, batching, prefix hits and preemption change no output at all.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from exact_cpu import EXACT
from random_checkpoint import RandomCheckpoint, llama
from torch import Tensor

from draftline.kernels.batch import KVCache
from draftline.kernels.reference.ops import ReferenceOps
from draftline.kernels.slots import SlotTable
from draftline.models.config import ModelConfig
from draftline.models.families import build_model
from draftline.models.model import Model

CPU = torch.device("cpu")
BLOCK = 16
MAX_LEN = 256
"""Where the bits are known to be equal. Elsewhere BLAS has other kernels, and results are only close."""

CONFIG = llama(
    hidden_size=96,
    intermediate_size=160,
    num_layers=3,
    num_heads=6,
    head_dim=16,
    max_positions=MAX_LEN,
    sliding_windows=(None, 40, None),
)
_GEMMA3 = replace(
    CONFIG,
    family="Gemma3ForCausalLM",
    qk_norm=True,
    local_rope_theta=500.0,
    rope_factor=4.0,
    attention_scale=0.2,
)
FAMILIES = {
    "gpt2": replace(
        CONFIG,
        family="GPT2LMHeadModel",
        num_kv_heads=6,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        sliding_windows=(None,) * 3,
    ),
    "gemma3": _GEMMA3,
    "gemma3-soft-caps": replace(_GEMMA3, attention_soft_cap=2.0, logits_soft_cap=3.0),
}


def checkpoint(weight_format: str, config: ModelConfig = CONFIG) -> RandomCheckpoint:
    return RandomCheckpoint(config, std=0.15, weight_format=weight_format)


class Engine:
    """The sequences of one model, computed in whatever rows a test asks for."""

    def __init__(
        self,
        model: Model,
        ops: ReferenceOps,
        sequences: Sequence[Sequence[int]],
        seed: int,
        cache_dtype: torch.dtype | None = None,
    ) -> None:
        self._model, self._ops = model, ops
        per_row = MAX_LEN // BLOCK
        order = torch.randperm(len(sequences) * per_row, generator=torch.Generator().manual_seed(seed))
        self._slots = SlotTable.allocate(len(sequences), MAX_LEN, per_row, CPU)
        self._slots.block_tables.copy_(order.view(-1, per_row))
        for slot, tokens in enumerate(sequences):
            self._slots.tokens[slot, : len(tokens)] = torch.tensor(tokens)
        self._cache = KVCache.allocate(
            model.config.num_layers,
            len(sequences) * per_row,
            BLOCK,
            model.config.num_kv_heads,
            model.config.head_dim,
            dtype=cache_dtype or model.cache_dtype,
            device=CPU,
        )

    def run(self, rows: Sequence[tuple[int, int, int]]) -> list[Tensor]:
        """Forward (slot, start, end) rows; the logits of all their tokens."""
        slots = torch.tensor([slot for slot, _, _ in rows])
        starts = tuple(start for _, start, _ in rows)
        lengths = tuple(end - start for _, start, end in rows)
        with torch.inference_mode():
            batch = self._ops.gather(self._slots, slots, lengths, starts, lengths, BLOCK).batch
            return list(self._model.forward(batch, self._cache).split(lengths))


@pytest.mark.parametrize(
    ("weight_format", "dtype"),
    [
        ("F32", torch.float32),
        ("Q8_0", torch.float16),
        ("Q4_1", torch.bfloat16),
        pytest.param("Q4_1", torch.float32, marks=pytest.mark.slow),
        pytest.param("Q4_1", torch.float16, marks=pytest.mark.slow),
        pytest.param("Q8_0", torch.bfloat16, marks=pytest.mark.slow),
        ("fp8", torch.float16),
        ("int8", torch.bfloat16),
    ],
    ids=str,
)
def test_logits_have_the_same_bits_in_every_schedule(weight_format: str, dtype: torch.dtype) -> None:
    ops = ReferenceOps()
    check_schedules(build_model(checkpoint(weight_format), CONFIG, ops, dtype, CPU), ops)


@pytest.mark.parametrize("cache_dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.int8], ids=str)
def test_narrower_caches_keep_that(cache_dtype: torch.dtype) -> None:
    ops = ReferenceOps()
    check_schedules(build_model(checkpoint("Q8_0"), CONFIG, ops, torch.float16, CPU), ops, cache_dtype)


# By default each type once: the layers of a family do not depend on it.
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("gpt2", torch.float16),
        ("gemma3", torch.float32),
        ("gemma3-soft-caps", torch.bfloat16),
        pytest.param("gpt2", torch.float32, marks=pytest.mark.slow),
        pytest.param("gpt2", torch.bfloat16, marks=pytest.mark.slow),
        pytest.param("gemma3-soft-caps", torch.float16, marks=pytest.mark.slow),
        pytest.param("gemma3", torch.float16, marks=pytest.mark.slow),
        pytest.param("gemma3", torch.bfloat16, marks=pytest.mark.slow),
        pytest.param("gemma3-soft-caps", torch.float32, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_so_they_have_in_families_with_layers_of_their_own(name: str, dtype: torch.dtype) -> None:
    ops, config = ReferenceOps(), FAMILIES[name]
    check_schedules(build_model(checkpoint("F32", config), config, ops, dtype, CPU), ops)


def check_schedules(model: Model, ops: ReferenceOps, cache_dtype: torch.dtype | None = None) -> None:
    rng = random.Random(0)
    sequences = [[rng.randrange(CONFIG.vocab_size) for _ in range(length)] for length in (140, 100, 70, 9)]
    whole = [Engine(model, ops, [tokens], 0, cache_dtype).run([(0, 0, len(tokens))])[0] for tokens in sequences]
    assert whole[0].dtype == torch.float32
    assert whole[0].std() > 0.1

    def same(slot: int, start: int, logits: Tensor) -> None:
        expected = whole[slot][start : start + logits.shape[0]]
        assert torch.equal(logits, expected) or not EXACT
        torch.testing.assert_close(logits, expected, atol=0.05, rtol=0.05)

    for seed, sizes in enumerate(([1], [64], [5], [1, 1, 2, 5, 17, 40], [100, 7])):
        engine = Engine(model, ops, sequences, seed, cache_dtype)
        # One token after the other takes long: of long sequences, the last ones.
        done = [max(0, len(tokens) - 40) if sizes == [1] else 0 for tokens in sequences]
        first = [(slot, 0, count) for slot, count in enumerate(done) if count]
        for (slot, start, _), logits in zip(first, engine.run(first) if first else (), strict=True):
            same(slot, start, logits)
        while any(count < len(tokens) for count, tokens in zip(done, sequences, strict=True)):
            rows = []
            for slot in rng.sample(range(len(sequences)), rng.randint(1, len(sequences))):
                end = min(len(sequences[slot]), done[slot] + rng.choice(sizes))
                if end > done[slot]:
                    rows.append((slot, done[slot], end))
            if rows:
                for (slot, start, end), logits in zip(rows, engine.run(rows), strict=True):
                    same(slot, start, logits)
                    done[slot] = end


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("qk_norm", "cache_dtype"),
    [(False, None), (True, None), (False, torch.float8_e4m3fn), (True, torch.int8)],
    ids=["plain", "qk-norm", "fp8-cache", "int8-cache"],
)
def test_operation_by_operation_gives_the_program_s_bits(
    qk_norm: bool, cache_dtype: torch.dtype | None, dtype: torch.dtype
) -> None:
    config = replace(CONFIG, qk_norm=qk_norm)
    rng = random.Random(1)
    sequences = [[rng.randrange(CONFIG.vocab_size) for _ in range(length)] for length in (90, 33, 20)]
    rows = [(0, 0, 90), (1, 0, 30), (2, 0, 19)], [(2, 19, 20), (1, 30, 33)]
    logits = []
    for scripted in (True, False):
        ops = ReferenceOps()
        ops.scripted = scripted
        model = build_model(checkpoint("Q8_0", config), config, ops, dtype, CPU)
        engine = Engine(model, ops, sequences, 0, cache_dtype)
        logits.append([part for step in rows for part in engine.run(step)])
    for program, by_operation in zip(*logits, strict=True):
        assert torch.equal(program, by_operation) or not EXACT
        torch.testing.assert_close(program, by_operation, atol=0.05, rtol=0.05)
