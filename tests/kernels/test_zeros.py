"""Zeroed tensors: as torch makes them, and on a CPU without memory until they are written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from draftline.kernels.batch import KVCache
from draftline.kernels.zeros import zeros

CPU = torch.device("cpu")


def resident_bytes() -> int:
    """The memory that this process has taken of its own."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["RssAnon"].split()[0]) << 10


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("shape", [(5, 4, 3, 7), (1,), (0, 4), ()], ids=str)
def test_like_torchs_own(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    made, own = zeros(shape, dtype, CPU), torch.zeros(shape, dtype=dtype)
    assert (made.shape, made.dtype, made.device, made.stride()) == (own.shape, own.dtype, own.device, own.stride())
    assert made.data_ptr() % 64 == 0
    assert torch.equal(made.float(), own.float())
    assert zeros(shape, dtype, torch.device("meta")).is_meta


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_unused_blocks_of_a_cache_take_no_memory_on_a_cpu() -> None:
    grown = []
    for _ in range(5):  # threads of other tests may take memory at the same moment
        before = resident_bytes()
        cache = KVCache.allocate(2, 1024, 16, 8, 64, dtype=torch.float32, device=CPU)
        grown.append(resident_bytes() - before)
    size = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert size == 128 << 20
    assert min(grown) < size / 8
    before = resident_bytes()
    for layer in cache.layers:
        layer.keys.fill_(1)
    assert resident_bytes() - before > 3 * size / 8
    assert not any(layer.values.any() for layer in cache.layers)
