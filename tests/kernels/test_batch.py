"""The cache's memory: zeroed, aligned, and on a CPU taken block by block."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from draftline.kernels.batch import KVCache

CPU = torch.device("cpu")


def resident_bytes() -> int:
    """The memory that this process has taken of its own."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["RssAnon"].split()[0]) << 10


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn], ids=str)
def test_a_cache_is_zero_and_aligned(dtype: torch.dtype) -> None:
    cache = KVCache.allocate(2, 5, 4, 3, 7, dtype=dtype, device=CPU)
    for layer in cache.layers:
        for tensor in (layer.keys, layer.values):
            assert (tensor.shape, tensor.dtype) == ((5, 4, 3, 7), dtype)
            assert tensor.is_contiguous()
            assert tensor.data_ptr() % 64 == 0
            assert not tensor.view(torch.uint8).any()
        assert (layer.scales is not None) == (dtype == torch.int8)
        for scales in layer.scales or ():
            assert (scales.shape, scales.dtype, bool(scales.any())) == ((5, 4, 3), torch.float32, False)
    keys = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
    assert len({tensor.data_ptr() for tensor in keys}) == 4


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_on_a_cpu_unused_blocks_take_no_memory() -> None:
    before = resident_bytes()
    cache = KVCache.allocate(2, 1024, 16, 8, 64, dtype=torch.float32, device=CPU)
    size = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert size == 128 << 20
    assert resident_bytes() - before < size / 8
    for layer in cache.layers:
        layer.keys.fill_(1)
    assert resident_bytes() - before > 3 * size / 8
