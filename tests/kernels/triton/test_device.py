"""The choice of a division by a device's shared memory. `compile/test_aot.py` compiles what is chosen."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import pytest

from draftline.kernels.triton.attention.decode_plan import plan_decode, plan_short
from draftline.kernels.triton.attention.plan import AttentionShape, chunk_tile, max_lanes
from draftline.kernels.triton.device import SHARED_BYTES, DeviceLimits, fitting
from draftline.kernels.triton.linear.gemm_config import GemmConfig, gemm_config, parts_config, small_config
from draftline.kernels.triton.linear.gemm_m16 import gemm_m16_config
from draftline.kernels.triton.linear.gemm_m16_parts import GemmM16PartsConfig, gemm_m16_parts_config
from draftline.kernels.triton.linear.scaled_gemm import ScaledGemmConfig, scaled_gemm_config
from draftline.kernels.triton.linear.scaled_gemm_m16 import ScaledGemmM16Config, scaled_gemm_m16_config

H200 = DeviceLimits.known(90, 132)
LARGE = GemmConfig(block_m=64, block_n=64, block_k=256, num_warps=4, num_stages=4)


def needs(config: GemmConfig, limits: DeviceLimits) -> int:
    return config.shared_bytes(limits, 2, swiglu=False)


def test_what_fits_is_not_replaced() -> None:
    assert needs(LARGE, replace(H200, shared_bytes=1 << 20)) == 4 * 128 * 256 * 2 + 1024
    roomy = replace(H200, shared_bytes=4 * 128 * 256 * 2 + 1024)
    assert fitting(LARGE, lambda one: needs(one, roomy), roomy) is LARGE


def test_the_next_smaller_one_that_fits_is_taken_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    limits = replace(H200, shared_bytes=99 << 10)
    with caplog.at_level(logging.INFO):
        chosen = [fitting(LARGE, lambda one: needs(one, limits), limits) for _ in range(3)]
    assert set(chosen) == {replace(LARGE, num_stages=3, block_k=128)}
    [record] = caplog.records
    assert f"takes {needs(LARGE, limits)} bytes of shared memory of {99 << 10}" in record.getMessage()


def test_everything_but_the_rows_becomes_smaller_in_the_end() -> None:
    limits, seen = replace(H200, shared_bytes=(64 + 16) * 64 * 2 * 2 + 1024), [LARGE]
    while (smaller := seen[-1].smaller()) is not None:
        assert needs(smaller, limits) < needs(seen[-1], limits)
        seen.append(smaller)
    assert (
        fitting(LARGE, lambda one: needs(one, limits), limits)
        == seen[-1]
        == replace(LARGE, num_stages=2, block_k=64, block_n=16)
    )
    none = replace(limits, shared_bytes=100)
    with pytest.raises(ValueError, match="bytes of shared memory, and the device has 100"):
        fitting(LARGE, lambda one: needs(one, none), none)


@pytest.mark.parametrize("capability", SHARED_BYTES)
def test_every_division_has_one_that_fits(capability: int) -> None:
    limits = DeviceLimits.known(capability, 100)
    for rows, n, swiglu in product(
        (1, 17, 64, 65, 256, 257, 4096), (64, 1024, 2048, 4096, 8192, 128_000), (False, True)
    ):
        # With 65 to 1,024 rows, larger weights have SwiGLU in a launch of its own.
        for wide in (False, True) if not swiglu or rows <= 64 else (False,) if rows > 1024 else ():
            for k in (1024, 4096):
                config = gemm_config(rows, n, k, swiglu=swiglu, wide=wide)
                check(config, limits, itemsize=4 if wide else 2, swiglu=swiglu)
        if 64 < rows <= 1024 and n <= 4096:
            check(small_config(rows, n, swiglu=swiglu), limits, itemsize=2, swiglu=swiglu)
        for grouped, halves in product((False, True), (1, 2)):
            scaled = scaled_gemm_config(rows, n, swiglu=swiglu, grouped=grouped, halves=halves)
            check(scaled, limits, swiglu=swiglu)
    for n, k in product((64, 1024, 2048, 6144, 128_000), (384, 576, 1024, 1536, 2048, 3072, 14336)):
        for tokens in (1, 17):
            check(gemm_m16_config(tokens, n, k, overlap=limits.overlaps), limits, k=k, itemsize=2)
        for grouped, halves in product((False, True), (1, 2)):
            check(
                scaled_gemm_m16_config(n, k, grouped=grouped, halves=halves),
                limits,
                k=k,
                grouped=grouped,
                halves=halves,
            )


@pytest.mark.parametrize("capability", SHARED_BYTES)
def test_every_division_of_sums_in_parts_has_one_that_fits(capability: int) -> None:
    limits = DeviceLimits.known(capability, 100)
    for tokens, rows, part in product((1, 8, 10, 16, 24, 40, 64), (64, 960, 2048), (128, 256, 384, 512, 768, 1280)):
        config = gemm_m16_parts_config(tokens, rows, part, attends=True)
        chosen = fitting(config, partial(GemmM16PartsConfig.shared_bytes, part=part, itemsize=2), limits)
        assert chosen == config or capability != 90
        for many in (64, 256, 512, 1024, 8192):
            check(parts_config(many, rows, part), limits, itemsize=2, swiglu=False)


def check(division: Any, limits: DeviceLimits, **options: Any) -> None:
    """What is chosen fits, has the same rows, and on the device that it was tuned on it is the division itself."""
    chosen = fitting(division, lambda one: one.shared_bytes(limits, **options), limits)
    assert chosen.shared_bytes(limits, **options) <= limits.shared_bytes
    assert getattr(chosen, "block_m", 16) == getattr(division, "block_m", 16)
    assert not isinstance(chosen, ScaledGemmConfig | ScaledGemmM16Config) or chosen.block_k % 128 == 0
    # With fewer weight rows, 9.0 would multiply by an instruction that sums FP8 products in another way.
    assert not isinstance(chosen, ScaledGemmM16Config) or chosen.block_n >= 32
    if limits.capability == 90:
        assert chosen is division


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("capability", SHARED_BYTES)
def test_the_tile_of_keys_is_the_same_on_every_device(capability: int, head_dim: int) -> None:
    shape = AttentionShape(group=4, num_kv_heads=8, head_dim=head_dim, limits=DeviceLimits.known(capability, 100))
    tuned = chunk_tile(replace(shape, limits=H200))
    tile = chunk_tile(shape)
    assert tile.block_n == tuned.block_n == shape.key_tile
    assert tile == (replace(tuned, num_stages=2) if capability == 120 and head_dim > 64 else tuned)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("capability", SHARED_BYTES)
def test_verifies_have_the_largest_tile_that_fits(capability: int, head_dim: int) -> None:
    shape = AttentionShape(group=4, num_kv_heads=1, head_dim=head_dim, limits=DeviceLimits.known(capability, 100))
    assert max_lanes(shape) == 64
    # Compiled for 8.6, tiles of 64 float32 queries take 102,400 bytes, and with an INT8 cache 106,624.
    small = head_dim == 256 and shape.limits.shared_bytes < 106_624
    wide = replace(shape, wide=True)
    assert max_lanes(wide) == (32 if small else 64)
    for plan in (plan_decode(wide, (16,) * 4, (1024,) * 4), plan_short(wide, (5, 40), (1024,) * 2)):
        assert plan is None or plan.tile.block_m == max_lanes(wide)
