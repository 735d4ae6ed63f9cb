"""The families that have operations of their own, by the Triton operations, against the reference operations.

On a CPU the kernels run in Triton's interpreter. The projections are the CPU's; the fused ones have tests of their own.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from random_checkpoint import RandomCheckpoint
from torch import Tensor

from draftline.kernels.batch import KVCache
from draftline.kernels.ops import Ops
from draftline.kernels.reference.ops import ReferenceOps
from draftline.kernels.slots import SlotTable
from draftline.kernels.triton.device import DeviceLimits
from draftline.kernels.triton.ops import TritonOps
from draftline.models.config import ModelConfig
from draftline.models.families import build_model, config_from_hf

BLOCK = 16
VOCAB = 61
DEVICE = torch.device("cpu")
GEMMA3 = config_from_hf(
    {
        "architectures": ["Gemma3ForCausalLM"],
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "sliding_window": 20,
        "sliding_window_pattern": 2,
        "rope_scaling": {"rope_type": "linear", "factor": 4.0},
        "query_pre_attn_scalar": 24,
    }
)
CONFIGS = {
    "gpt2": config_from_hf(
        {"architectures": ["GPT2LMHeadModel"], "vocab_size": VOCAB, "n_embd": 48, "n_layer": 1, "n_head": 3}
    ),
    "gemma3": GEMMA3,
    "gemma3-soft-caps": replace(GEMMA3, attention_soft_cap=2.0, logits_soft_cap=3.0),
}


def logits(config: ModelConfig, ops: Ops) -> list[Tensor]:
    """Chunks, decodes and a verify of three sequences."""
    model = build_model(RandomCheckpoint(config, std=0.2), config, ops, torch.float32, DEVICE)
    rng = random.Random(0)
    slots = SlotTable.allocate(3, 96, 6, DEVICE)
    slots.block_tables.copy_(torch.randperm(18, generator=torch.Generator().manual_seed(0)).view(3, 6))
    slots.tokens.copy_(torch.tensor([[rng.randrange(VOCAB) for _ in range(96)] for _ in range(3)]))
    cache = KVCache.allocate(
        config.num_layers, 18, BLOCK, config.num_kv_heads, config.head_dim, dtype=torch.float32, device=DEVICE
    )
    steps: list[tuple[list[int], tuple[int, ...], tuple[int, ...]]] = [
        ([0, 1, 2], (22, 12, 1), (0, 0, 0)),
        ([2, 0, 1], (1, 1, 1), (1, 22, 12)),
        ([0, 1], (3, 20), (23, 13)),
    ]
    gathered = [(ReferenceOps().gather(slots, torch.tensor(rows), *rest, rest[0], BLOCK)) for rows, *rest in steps]
    return [model.forward(inputs.batch, cache) for inputs in gathered]


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(CONFIGS["gpt2"], marks=pytest.mark.slow),
        CONFIGS["gemma3-soft-caps"],
        pytest.param(CONFIGS["gemma3"], marks=pytest.mark.slow),
    ],
    ids=["gpt2", "gemma3-soft-caps", "gemma3"],
)
# The interpreter's numpy warns where the device's exp just returns infinity.
@pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")
def test_as_by_the_reference(config: ModelConfig) -> None:
    expected = logits(config, ReferenceOps())
    assert expected[0].std() > 0.1
    for result, wanted in zip(logits(config, TritonOps.sized(DeviceLimits.known(80, 8))), expected, strict=True):
        torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-4)
