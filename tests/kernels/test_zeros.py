"""Zeroed tensors: as torch makes them, and on a CPU without memory until they are written."""

from __future__ import annotations

import mmap
import resource

import pytest
import torch

from draftline.kernels.batch import KVCache
from draftline.kernels.zeros import zeros

CPU = torch.device("cpu")


def pages_taken() -> int:
    """The pages, small or huge, that this thread has been the first to touch. Resident memory would tell of other threads too."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("shape", [(5, 4, 3, 7), (1,), (0, 4), ()], ids=str)
def test_like_torchs_own(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    made, own = zeros(shape, dtype, CPU), torch.zeros(shape, dtype=dtype)
    assert (made.shape, made.dtype, made.device, made.stride()) == (own.shape, own.dtype, own.device, own.stride())
    assert made.data_ptr() % 64 == 0
    assert torch.equal(made.float(), own.float())
    assert zeros(shape, dtype, torch.device("meta")).is_meta


@pytest.mark.skipif(not hasattr(resource, "RUSAGE_THREAD"), reason="counts a thread's page faults, which Linux does")
def test_unused_blocks_of_a_cache_take_no_memory_on_a_cpu() -> None:
    KVCache.allocate(1, 1, 16, 8, 64, dtype=torch.float32, device=CPU)  # the first call touches its code
    before = pages_taken()
    cache = KVCache.allocate(2, 1024, 16, 8, 64, dtype=torch.float32, device=CPU)
    allocated = pages_taken() - before
    assert sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers) == 128 << 20
    before = pages_taken()
    for layer in cache.layers:
        layer.keys.numpy().fill(1)
    assert pages_taken() - before > 3 * allocated
    assert not any(layer.values.any() for layer in cache.layers)


@pytest.mark.skipif(not hasattr(resource, "RUSAGE_THREAD"), reason="counts a thread's page faults, which Linux does")
def test_no_first_write_clears_a_huge_page() -> None:
    """A step writes to the cache of every layer: with huge pages it would clear 2 MiB for each of them."""
    made = zeros((64 << 20,), torch.uint8, CPU)
    before = pages_taken()
    made.fill_(1)
    assert pages_taken() - before >= 0.9 * made.nbytes / mmap.PAGESIZE
