"""Which part of a model each rank has, and of its tensors."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import torch
from exact_models import SHAPES, write_model

from draftline.engine.config import EngineConfig
from draftline.engine.parallel import leader
from draftline.kernels.scaled import scaled_up
from draftline.models.errors import ModelLoadError
from draftline.models.families import config_from_hf
from draftline.models.loader import open_checkpoint
from draftline.models.parallel.checkpoint import PartialCheckpoint
from draftline.models.parallel.split import splits
from draftline.quant.eight_bit import dequantize_scaled
from draftline.quant.parts import columns_of, rows_of
from draftline.quant.tensor import RawTensor, Scales

SMOLLM2 = config_from_hf(SHAPES["llama-576"])


def heads(queries: int, keys: int, size: int) -> list[tuple[int, int]]:
    """Each rank's query and key/value heads."""
    config = replace(SMOLLM2, num_heads=queries, num_kv_heads=keys)
    local = [split.local(config) for split in splits(config, size)]
    return [(part.num_heads, part.num_kv_heads) for part in local]


def test_groups_stay_whole_while_there_are_enough() -> None:
    assert heads(9, 3, 2) == [(6, 2), (3, 1)]
    assert heads(32, 8, 2) == [(16, 4)] * 2
    assert heads(32, 8, 8) == [(4, 1)] * 8
    assert heads(40, 10, 4) == [(12, 3), (12, 3), (8, 2), (8, 2)]


def test_more_ranks_than_groups_share_a_key() -> None:
    assert heads(9, 3, 4) == [(2, 1), (1, 1), (3, 1), (3, 1)]
    assert heads(4, 1, 3) == [(2, 1), (1, 1), (1, 1)]
    assert [split.keys for split in splits(replace(SMOLLM2, num_heads=9, num_kv_heads=3), 4)] == [
        (0, 1), (0, 1), (1, 2), (2, 3),
    ]  # fmt: skip


def test_ranks_of_one_size_launch_the_same_kernels() -> None:
    def sized_as_first(queries: int, keys: int, size: int) -> list[bool]:
        config = replace(SMOLLM2, num_heads=queries, num_kv_heads=keys, intermediate_size=128 * size)
        parts = splits(config, size)
        return [part.heads_and_channels == parts[0].heads_and_channels for part in parts]

    assert sized_as_first(32, 8, 4) == [True] * 4
    assert sized_as_first(9, 3, 2) == [True, False]


def test_a_rank_without_a_head_is_refused() -> None:
    config = replace(SMOLLM2, num_heads=3, num_kv_heads=3)
    with pytest.raises(
        ModelLoadError, match=r"tensor_parallel_size: 4 ranks cannot share 3 query heads.*; 1, 2, 3 work"
    ):
        splits(config, 4)


@pytest.mark.parametrize("size", range(1, 9))
@pytest.mark.parametrize("shape", ["llama-576", "llama-1024", "gemma3-128"])
def test_parts_cover_everything_once(shape: str, size: int) -> None:
    config = config_from_hf(SHAPES[shape])
    if size > config.num_heads:
        return
    parts = splits(config, size)
    for name, whole in (
        ("queries", config.num_heads),
        ("channels", config.intermediate_size),
        ("vocabulary", config.vocab_size),
    ):
        indices = [index for part in parts for index in range(*getattr(part, name))]
        assert indices == list(range(whole))
    group = config.num_heads // config.num_kv_heads
    for part in parts:
        assert {query // group for query in range(*part.queries)} == set(range(*part.keys))


@pytest.mark.parametrize("shape", ["llama-576", "gpt2-192"])
def test_a_checkpoint_reads_its_part(shape: str, tmp_path: Path) -> None:
    write_model(tmp_path, shape)
    whole = open_checkpoint(str(tmp_path))
    parts = [PartialCheckpoint(whole, split) for split in splits(whole.config, 2)]
    for name, dim in (("self_attn.o_proj", 1), ("mlp.down_proj", 1), ("mlp.up_proj", 0)):
        name = f"model.layers.1.{name}.weight"
        assert torch.cat([part.tensor(name).data for part in parts], dim).equal(whole.tensor(name).data)
        assert all(part.tensor(name).shape == tuple(part.tensor(name).data.shape) for part in parts)
    assert parts[0].tensor("model.norm.weight").data.equal(whole.tensor("model.norm.weight").data)


def test_a_merged_projection_is_divided_in_each_of_its_three(tmp_path: Path) -> None:
    write_model(tmp_path, "gpt2-192")
    whole = open_checkpoint(str(tmp_path))
    name = "model.layers.0.self_attn.qkv_proj.weight"
    merged = whole.tensor(name).data.view(3, 3, 64, 192)
    for split in splits(whole.config, 2):
        part = PartialCheckpoint(whole, split).tensor(name).data
        assert part.equal(merged[:, slice(*split.queries)].flatten(0, 2))


@pytest.mark.parametrize("rows", [1, 32, 48, 96])
@pytest.mark.parametrize("columns", [32, 64])
def test_scales_follow_their_weights(rows: int, columns: int) -> None:
    generator = torch.Generator().manual_seed(1)
    data = torch.randint(-127, 128, (96, 64), dtype=torch.int8, generator=generator)
    scales = Scales(torch.rand((-(-96 // rows), 64 // columns), generator=generator), rows, columns)
    raw = RawTensor("x", "I8", (96, 64), data, scales)
    whole = scaled_up(data, scales.values, rows, columns)
    for ranges in ([(0, 96)], [(0, 40)], [(40, 96)], [(16, 32), (48, 64), (80, 90)]):
        expected = torch.cat([whole[first:end] for first, end in ranges])
        assert dequantize_scaled(rows_of(raw, ranges)).equal(expected)
    for first, end in ((0, 64), (0, 40), (40, 64), (16, 33)):
        assert dequantize_scaled(columns_of(raw, first, end)).equal(whole[:, first:end])


def test_a_process_divides_a_model_between_gpus_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's peer memory finds the ranks of a process's first engine only."""
    monkeypatch.setattr(leader, "Ranks", lambda config, device: device)
    monkeypatch.setattr(leader, "_DIVIDED", count())
    config, gpu = EngineConfig(tensor_parallel_size=2), torch.device("cuda")
    assert leader.start_ranks(config, SMOLLM2, gpu) == gpu
    for _ in range(2):
        assert leader.start_ranks(config, SMOLLM2, torch.device("cpu")) == torch.device("cpu")
        with pytest.raises(ModelLoadError, match="between GPUs once"):
            leader.start_ranks(config, SMOLLM2, gpu)
