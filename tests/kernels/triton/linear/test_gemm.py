from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear, silu
from torch.testing import assert_close

from draftline.kernels.triton.device import UNLIMITED, DeviceLimits
from draftline.kernels.triton.linear.gemm import gemm
from draftline.kernels.triton.linear.gemm_config import (
    GemmConfig,
    gemm_config,
    keeps_busy,
    max_own_rows,
    parts_config,
    small_config,
)
from draftline.kernels.triton.linear.gemm_m16 import gemm_m16

# The second has more than eight tiles of rows, which are visited band by band. Programs of the last take several tiles.
CONFIGS = [
    GemmConfig(64, 32, 64, 4, 3),
    GemmConfig(16, 64, 32, 4, 2),
    GemmConfig(128, 64, 256, 8, 2),
    GemmConfig(64, 16, 64, 4, 2, in_turn=2),
]
SMALL = DeviceLimits(90, 2, UNLIMITED.shared_bytes)


def draw(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=rng, device=rng.device)


@pytest.mark.parametrize("config", [None, *CONFIGS], ids=str)
@pytest.mark.parametrize("rows", [1, 20, 150])
@pytest.mark.parametrize(("n", "k"), [(50, 192), (33, 92)])
def test_gemm(n: int, k: int, rows: int, config: GemmConfig | None, rng: torch.Generator) -> None:
    x, weight, bias, residual = draw(rng, rows, k), draw(rng, n, k), draw(rng, n), draw(rng, rows, n)
    assert_close(gemm(x, weight, config=config, limits=SMALL), linear(x, weight), rtol=1e-4, atol=1e-4)
    before = residual.clone()
    actual = gemm(x, weight, bias, residual=residual, config=config, limits=SMALL)
    assert_close(actual, residual + linear(x, weight, bias), rtol=1e-4, atol=1e-4)
    assert torch.equal(residual, before)


@pytest.mark.parametrize("config", [None, CONFIGS[0]], ids=str)
def test_swiglu(config: GemmConfig | None, rng: torch.Generator) -> None:
    x, weight, bias = draw(rng, 30, 320), draw(rng, 2 * 40, 320) / 20, draw(rng, 80)
    gate, up = linear(x, weight, bias).chunk(2, dim=-1)
    assert_close(gemm(x, weight, bias, swiglu=True, config=config, limits=SMALL), silu(gate) * up, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("dots_in_order")
def test_a_row_has_the_same_bits_in_every_batch_and_config(rng: torch.Generator) -> None:
    x, weight, bias, residual = draw(rng, 150, 192), draw(rng, 40, 192), draw(rng, 40), draw(rng, 150, 40)
    together = gemm(x, weight, bias, residual=residual, config=CONFIGS[0])
    for config in (None, *CONFIGS, small_config(150, 40, swiglu=False)):
        for rows in (slice(3, 4), slice(100, 130), slice(0, 150)):
            actual = gemm(x[rows], weight, bias, residual=residual[rows], config=config, limits=SMALL)
            assert torch.equal(actual, together[rows])
    together = gemm(x[:40], weight, bias, swiglu=True)
    for config in CONFIGS:
        assert torch.equal(gemm(x[7:9], weight, bias, swiglu=True, config=config, limits=SMALL), together[7:9])


@pytest.mark.usefixtures("dots_in_order")
def test_few_rows_have_the_bits_of_their_own_kernel(rng: torch.Generator) -> None:
    x, weight, bias, residual = draw(rng, 16, 320), draw(rng, 40, 320), draw(rng, 40), draw(rng, 16, 40)
    assert torch.equal(gemm(x, weight, bias, residual=residual), gemm_m16(x, weight, bias, residual=residual))
    assert torch.equal(gemm(x, weight, bias, swiglu=True), gemm_m16(x, weight, bias, swiglu=True))


def test_the_division_depends_on_sizes() -> None:
    """Each branch: tiles for few and many rows, narrow and wide weights, gates, and exact float32 products."""
    sizes = [
        (rows, n, k)
        for rows in (17, 32, 33, 64, 65, 256, 257, 5000)
        for n in (576, 1025, 4097, 16385)
        for k in (1024, 2048)
    ]
    chosen = {gemm_config(*size, swiglu=swiglu, wide=False) for size in sizes for swiglu in (False, True)}
    assert {config.block_m for config in chosen} == {32, 64, 128}
    for rows, n, k in sizes:
        if rows <= 64:
            few = rows <= 32 and (n > 4096 or (n > 1024 and k <= 1024))
            assert gemm_config(rows, n, k, swiglu=False, wide=False).block_m == (32 if few else 64)
            assert gemm_config(rows, n, k, swiglu=True, wide=False).block_m == 64
    assert [gemm_config(rows, 576, 576, swiglu=False, wide=True).block_m for rows in (16, 17)] == [16, 32]


def test_many_rows_take_tiles_in_turn() -> None:
    for n, swiglu in ((576, False), (4096, False), (1536, True), (6144, True)):
        assert gemm_config(4096, n, 1024, swiglu=swiglu, wide=False).in_turn
        assert not gemm_config(1024, n, 1024, swiglu=swiglu, wide=False).in_turn
    for n in (576, 1024):
        assert not gemm_config(2048, n, 1024, swiglu=False, wide=False).in_turn, "all tiles run at once"


def test_programs_with_tiles_in_turn_are_busy() -> None:
    """132 multiprocessors take 256 tiles in two turns, of which six programs miss one; 192 leave a third of a turn."""
    limits = DeviceLimits.known(90, 132)
    assert [keeps_busy(rows, 4096, limits, swiglu=False) for rows in (1024, 1536, 2048)] == [False, False, True]
    assert [keeps_busy(rows, 1024, limits, swiglu=False) for rows in (2048, 4096)] == [False, True]
    assert [keeps_busy(1536, n, limits, swiglu=True) for n in (14336, 3072)] == [True, False]


def test_few_output_columns_have_programs_for_most_multiprocessors() -> None:
    for rows in (65, 100, 128, 320, 384, 512, 1024):
        assert gemm_config(rows, 4096, 4096, swiglu=False, wide=False).tiles(rows, 4096) >= 96, rows


def test_small_weights_have_programs_for_most_multiprocessors() -> None:
    for rows in range(65, 1025, 37):
        for n, swiglu in ((576, False), (960, False), (1536, True), (4096, False)):
            config = small_config(rows, n, swiglu=swiglu)
            programs = -(-rows // config.block_m) * (n // config.block_n)
            assert programs >= (96 if rows <= 128 else 60) or config.block_n == 16
            assert config.block_n <= (64 if swiglu and config.block_m == 64 else 128)


def test_the_larger_the_weight_the_fewer_rows_are_our_own() -> None:
    assert [max_own_rows(n * k) for n, k in ((3072, 576), (6144, 1024), (4096, 4096))] == [1024, 256, 64]
    assert max_own_rows(3072 * 576, swiglu=True) == 2048, "the vendor's product takes a launch more"


@pytest.mark.parametrize("n", [576, 768, 960, 1024, 1536])
def test_programs_of_a_small_weight_run_at_once(n: int) -> None:
    """One to three on each of 132 multiprocessors. Then none is left for a second turn of a few."""
    limits = DeviceLimits.known(90, 132)

    def at_once(division: GemmConfig, *, swiglu: bool) -> int:
        return 132 * min(limits.shared_bytes // division.shared_bytes(limits, 2, swiglu=swiglu), 3)

    for rows in range(64, 1537, 64):
        gates = small_config(rows, n, swiglu=True)
        assert gates.tiles(rows, n) <= at_once(gates, swiglu=True) or rows > 1024, (rows, gates)
        if n == 576 and rows > 256:
            for part in (256, 384):
                narrow = parts_config(rows, n, part)
                assert narrow.tiles(rows, n) <= at_once(narrow, swiglu=False), (rows, narrow)
