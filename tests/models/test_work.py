"""The model's own counts of a step's arithmetic and traffic, against counting position by position and torch's counter."""

from __future__ import annotations

import pytest
import torch
from random_checkpoint import RandomCheckpoint, llama
from torch.utils.flop_counter import FlopCounterMode

from draftline.kernels import select_ops
from draftline.models.config import ModelConfig
from draftline.models.families import build_model
from draftline.models.work import ModelWork, StepWork

CPU = torch.device("cpu")
ROWS = [(0, 5), (7, 1), (3, 9), (40, 4), (11, 1)]


def by_position(config: ModelConfig, rows: list[tuple[int, int]]) -> tuple[int, int]:
    """Attended positions and cache positions read, of all rows and layers."""
    attended = read = 0
    for window in config.sliding_windows:
        for start, count in rows:
            seen: set[int] = set()
            for position in range(start, start + count):
                first = 0 if window is None else max(0, position - window + 1)
                attended += position + 1 - first
                seen |= set(range(first, position + 1))
            read += len(seen)
    return attended, read


@pytest.mark.parametrize("windows", [(None, None), (4, None), (8, 8)])
def test_attention_is_counted_position_by_position(windows: tuple[int | None, ...]) -> None:
    config = llama(sliding_windows=windows)
    work = ModelWork(config, 1000.0, torch.bfloat16)
    attended, read = by_position(config, ROWS)
    tokens = sum(count for _, count in ROWS)
    projections = 2 * (32 * (4 + 2 * 2) * 8 + 32 * 32 + 3 * 32 * 64)  # of two layers
    flops = 2 * (tokens * projections + 3 * 256 * 32) + 4 * 4 * 8 * attended
    head_bytes = 2 * 2 * 8 * 2  # keys and values of a layer's heads in sixteen bits
    assert work.cache_bytes_a_token == 2 * head_bytes
    assert work.step(ROWS, 3) == (flops, 1000.0 + (2 * tokens + read) * head_bytes)


def test_the_products_are_those_that_transformers_runs() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = llama()
    sizes = {"vocab_size": 256, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 8}
    model = LlamaForCausalLM(LlamaConfig(num_attention_heads=4, num_key_value_heads=2, **sizes))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.arange(24)[None])
    products = sum(
        flops for op, flops in counter.get_flop_counts()["Global"].items() if str(op) in ("aten.mm", "aten.addmm")
    )
    work = ModelWork(config, 0.0, torch.float32)
    assert work.step([(0, 24)], 24).flops - products == 2 * 4 * 4 * 8 * 24 * 25 / 2  # what is left is attention


def test_the_weights_read_are_all_but_the_embedding() -> None:
    for tied in (True, False):
        config = llama(tied_embeddings=tied)
        model = build_model(RandomCheckpoint(config, std=0.3), config, select_ops(CPU), torch.float32, CPU)
        projections = 2 * (32 * (4 + 2 * 2) * 8 + 32 * 32 + 3 * 32 * 64)
        assert ModelWork.of(model, torch.float32).weight_bytes == 4 * (projections + 256 * 32)


def test_a_device_takes_as_long_as_its_slower_limit() -> None:
    assert StepWork(100.0, 30.0).seconds(10.0, 10.0) == 10.0
    assert StepWork(100.0, 30.0).seconds(100.0, 10.0) == 3.0
