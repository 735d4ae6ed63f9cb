"""How `gemm.py` divides a product: tiles by the numbers of rows and columns, tuned on an H200 and an H100 (docs/tuning.md).

No division changes a result, so the choice is one of speed alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from draftline.kernels.triton.device import DeviceLimits
from draftline.kernels.triton.linear.smaller import smaller_product
from draftline.kernels.triton.overlap import FEW_ROWS

OWN_ROWS = FEW_ROWS
"""Up to so many tokens every product runs here, since launches overlap."""

_SMALL_WEIGHTS = ((2 << 20, 1024, 2048), (8 << 20, 256, 256))
"""Weights of up to so many elements, and the tokens up to which their products are faster here, whose launches overlap, than
the vendor's: without SwiGLU, and with it, which takes the vendor a launch more."""

MANY_ROWS = 1024
"""With more tokens than these, programs take tiles in turn, if there are many."""

_SOME_ROWS = 2048
"""With more tokens than these, tiles of sums in parts are large."""

_SHORT_PART = 256
"""Channels of a part that are few."""

_MANY_TILES = 96
"""Tiles of 128 rows and 256 columns, or 256 and 128: with fewer, a product has smaller ones."""

_FULL = 0.8
"""The least share of the room for large tiles of sums in parts that they fill, all turns together."""

_BUSY = 0.85
"""The least share of their time in which programs that take tiles in turn have one."""

_FEW_CHANNELS = 1024
"""Channels of which a pipeline's tiles should be small: it has few."""

_ONE_EACH, _TWO_EACH, _THREE_EACH = 132, 264, 396
"""Programs that run at once, one, two or three on a multiprocessor."""


@dataclass(frozen=True, slots=True)
class GemmConfig:
    """How one product is divided.

    Attributes:
        block_m: rows of x a program.
        block_n: output columns a program.
        block_k: channels an iteration.
        num_warps: warps a program.
        num_stages: depth of the pipeline that loads both tiles.
        in_turn: programs a multiprocessor, which take tiles in turn; 0 for one program a tile.
        tiles_together: row tiles whose programs run next to each other, so that they share tiles in the L2 cache.
    """

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    in_turn: int = 0
    tiles_together: int = 8

    def smaller(self) -> GemmConfig | None:
        """The next smaller division with the same results; None if there is none."""
        return smaller_product(self, least_k=64)

    def tiles(self, rows: int, n: int) -> int:
        """Tiles of so many tokens and output columns."""
        return -(-rows // self.block_m) * -(-n // self.block_n)

    def shared_bytes(self, limits: DeviceLimits, itemsize: int, *, swiglu: bool) -> int:
        """Shared memory of a program."""
        columns = (2 if swiglu else 1) * self.block_n
        # A result is stored through shared memory, while the next tile's factors are there.
        stored = self.block_m * columns if self.in_turn else 0
        return limits.loop_bytes((self.block_m + columns) * self.block_k * itemsize, self.num_stages) + stored


_SLIM = GemmConfig(block_m=128, block_n=64, block_k=64, num_warps=8, num_stages=3)
"""A tile of sums in parts of many rows, of which a multiprocessor runs three."""


def max_own_rows(weight_elements: int, *, swiglu: bool = False) -> int:
    """The tokens up to which a product with so large a weight runs here, whatever the vendor has."""
    return next((rows[swiglu] for elements, *rows in _SMALL_WEIGHTS if weight_elements <= elements), OWN_ROWS)


def keeps_busy(rows: int, n: int, limits: DeviceLimits, *, swiglu: bool) -> bool:
    """Whether tiles of many tokens taken in turn leave few programs without one at the end."""
    if rows <= MANY_ROWS:
        return False
    config = _many_rows_config(rows, n, swiglu=swiglu)
    tiles, programs = config.tiles(rows, n), config.in_turn * limits.num_sms
    return programs > 0 and _fill(tiles, programs, _BUSY)


def small_config(rows: int, n: int, *, swiglu: bool) -> GemmConfig:
    """A division for 65 to 2,048 tokens and a small weight: tiles narrow enough for programs on most multiprocessors."""
    tiles_m = -(-rows // 64)
    if swiglu and rows > 128 and n <= 2048:
        if rows <= 192:  # three programs on each multiprocessor, which all run at once
            return GemmConfig(block_m=64, block_n=16, block_k=64, num_warps=4, num_stages=5)
        # Two programs on each multiprocessor or three, or where not all of them would run at once, fewer and larger ones.
        small = GemmConfig(block_m=64, block_n=32, block_k=64, num_warps=4, num_stages=5)
        if small.tiles(rows, n) <= _TWO_EACH:
            return small
        if small.tiles(rows, n) <= _THREE_EACH:
            return replace(small, num_stages=4)
        tall = GemmConfig(block_m=128, block_n=32, block_k=64, num_warps=4, num_stages=4)
        if tall.tiles(rows, n) <= _TWO_EACH:
            return tall
        large = GemmConfig(block_m=128, block_n=64, block_k=64, num_warps=4, num_stages=3)
        # Three programs of a shorter pipeline, where they all run at once, or where two of the large ones do not.
        if tall.tiles(rows, n) <= _THREE_EACH or large.tiles(rows, n) > _TWO_EACH:
            return replace(tall, num_stages=3)
        return large
    if 128 < rows <= 256 and n > 2048:
        if swiglu:
            return GemmConfig(block_m=128, block_n=64, block_k=64, num_warps=8, num_stages=4)
        return GemmConfig(block_m=64, block_n=128, block_k=128, num_warps=4, num_stages=4)
    programs, block_n = 96 if rows <= 128 else 60, 64 if swiglu else 128
    while block_n > 16 and n // block_n * tiles_m < programs:
        block_n //= 2
    if block_n == 128:
        return GemmConfig(block_m=64, block_n=128, block_k=64, num_warps=4, num_stages=5)
    return GemmConfig(block_m=64, block_n=block_n, block_k=128, num_warps=4, num_stages=4)


def gemm_config(rows: int, n: int, k: int, *, swiglu: bool, wide: bool) -> GemmConfig:
    """A good division for ``rows`` tokens, ``n`` output columns and ``k`` channels; `benchmarks/kernels.py` compares others.

    Args:
        rows: tokens.
        n: output columns.
        k: channels.
        swiglu: whether the weight has gates too.
        wide: whether the factors are float32.
    """
    if wide:
        return GemmConfig(block_m=16 if rows <= 16 else 32, block_n=32, block_k=16, num_warps=4, num_stages=2)
    if rows <= 32 and n > 4096 and not swiglu:
        return GemmConfig(block_m=32, block_n=64, block_k=128 if n > 16384 else 256, num_warps=4, num_stages=4)
    if rows <= 64:
        if swiglu:
            # Two tiles of the weight a program.
            block_n = 64 if n > 4096 else 32 if n > 2048 else 16
            return GemmConfig(block_m=64, block_n=block_n, block_k=128, num_warps=4, num_stages=4 if n > 4096 else 5)
        if n > 16384:
            return GemmConfig(block_m=64, block_n=128, block_k=64, num_warps=4, num_stages=4)
        if n > 4096:
            return GemmConfig(block_m=64, block_n=64, block_k=128, num_warps=4, num_stages=5)
        if n > 1024 and k <= _FEW_CHANNELS:
            if rows <= 32:
                return GemmConfig(block_m=32, block_n=64, block_k=128, num_warps=4, num_stages=4)
            return GemmConfig(block_m=64, block_n=32, block_k=128, num_warps=4, num_stages=6)
        # Few weight rows: narrow tiles, so that there are programs enough.
        return GemmConfig(block_m=64, block_n=32 if n > 1024 else 16, block_k=256, num_warps=4, num_stages=4)
    if rows <= 256:
        if n > 4096:
            return GemmConfig(block_m=128, block_n=128, block_k=64, num_warps=8, num_stages=5)
        if n > 1024 and rows > 128:
            return GemmConfig(block_m=64, block_n=128, block_k=128, num_warps=4, num_stages=4)
        return GemmConfig(block_m=64, block_n=64 if n > 1024 else 32, block_k=128, num_warps=4, num_stages=5)
    if rows <= MANY_ROWS:
        if n <= 1024:
            # Few weight rows again: tiles of 128 columns where those of 64 would not all run at once.
            return GemmConfig(block_m=64, block_n=64 if rows <= 512 else 128, block_k=128, num_warps=4, num_stages=4)
        large = GemmConfig(block_m=128, block_n=256, block_k=64, num_warps=8, num_stages=4)
        if large.tiles(rows, n) >= _MANY_TILES:
            return large
        return GemmConfig(block_m=128, block_n=128, block_k=64, num_warps=8, num_stages=5)
    return _many_rows_config(rows, n, swiglu=swiglu)


def _many_rows_config(rows: int, n: int, *, swiglu: bool) -> GemmConfig:
    """A division for many tokens: two programs a multiprocessor for a narrow weight, else one with a larger tile."""
    if swiglu:
        if n <= 2048:
            return GemmConfig(block_m=128, block_n=64, block_k=64, num_warps=4, num_stages=3, in_turn=2)
        # Here the power limit decides: tiles that share as much of x as of the weight move the fewest bytes.
        return GemmConfig(block_m=128, block_n=128, block_k=64, num_warps=8, num_stages=3, in_turn=1, tiles_together=12)
    if n < 1024 and rows > 2048:
        return GemmConfig(block_m=128, block_n=128, block_k=64, num_warps=4, num_stages=3, in_turn=2)
    large = GemmConfig(block_m=128, block_n=256, block_k=64, num_warps=8, num_stages=3, in_turn=1)
    if n >= 1024 and large.tiles(rows, n) >= _MANY_TILES:
        return large
    return GemmConfig(block_m=128, block_n=128, block_k=64, num_warps=4, num_stages=4)


def parts_config(rows: int, n: int, part: int) -> GemmConfig:
    """A good division of a sum in parts of so many channels, for ``rows`` tokens and ``n`` output columns.

    A program has two tiles of sums in registers, so large ones do not take tiles in turn.
    """
    few, block_k = n <= 1024, 128 if part % 256 else 256
    if rows <= 64:
        return GemmConfig(64, 16 if few else 32, block_k, num_warps=4, num_stages=5 if few else 4)
    if rows <= 256:
        block_n = 16 if few and rows <= 128 else 32
        return GemmConfig(64, block_n, block_k, num_warps=4, num_stages=6 if block_k == 128 else 4)
    narrow = GemmConfig(block_m=64, block_n=32, block_k=128, num_warps=4, num_stages=5)
    if narrow.tiles(rows, n) <= _ONE_EACH:
        return narrow
    square = GemmConfig(block_m=64, block_n=64, block_k=128, num_warps=4, num_stages=4 if n < 1024 else 5)
    if rows <= 512 or (n < 1024 and square.tiles(rows, n) <= _ONE_EACH):
        return square
    if n < 1024:
        return _few_columns_config(rows, n, part)
    if rows <= MANY_ROWS:
        return GemmConfig(block_m=64, block_n=128, block_k=128, num_warps=4, num_stages=4)
    large = GemmConfig(block_m=256, block_n=128, block_k=64, num_warps=8, num_stages=4)
    tiles = large.tiles(rows, n)
    if tiles >= _MANY_TILES and (rows <= _SOME_ROWS or _fill(tiles, _ONE_EACH, _FULL)):
        return large
    if rows <= _SOME_ROWS:
        return GemmConfig(block_m=64, block_n=128, block_k=64, num_warps=4, num_stages=4)
    if _SLIM.tiles(rows, n) <= _THREE_EACH:
        return _SLIM
    return GemmConfig(block_m=128, block_n=128, block_k=64, num_warps=8, num_stages=4)


def _few_columns_config(rows: int, n: int, part: int) -> GemmConfig:
    """A division of a sum in parts for more than 512 tokens and fewer than 1,024 output columns."""
    long = GemmConfig(block_m=128, block_n=64, block_k=128, num_warps=4, num_stages=4)
    if part > _SHORT_PART and long.tiles(rows, n) <= _ONE_EACH:
        return long
    # The parts of few channels have tiles of 64 channels, and two programs on each multiprocessor or three.
    light = GemmConfig(block_m=64, block_n=64, block_k=64, num_warps=4, num_stages=4)
    if part <= _SHORT_PART and light.tiles(rows, n) <= _TWO_EACH:
        return replace(light, num_stages=5)
    if light.tiles(rows, n) <= _THREE_EACH and rows <= _SOME_ROWS:
        return light
    # Two programs on each multiprocessor, or three slimmer ones where these take fewer turns.
    tall = GemmConfig(block_m=128, block_n=64, block_k=64, num_warps=4, num_stages=4)
    tiles = tall.tiles(rows, n)
    return _SLIM if _turns(tiles, _THREE_EACH) < _turns(tiles, _TWO_EACH) else tall


def _turns(tiles: int, at_once: int) -> int:
    """In how many turns so many programs run, of which so many run at once."""
    return -(-tiles // at_once)


def _fill(tiles: int, at_once: int, share: float) -> bool:
    """Whether so many tiles take at least this share of the room of their turns."""
    return tiles >= share * _turns(tiles, at_once) * at_once


def config_for(x: Tensor, weight: Tensor, part: int, *, swiglu: bool) -> GemmConfig:
    """A good division for a product of x and a weight, whose sum has parts of so many channels, or none."""
    rows, n, wide = x.shape[0], weight.shape[0] // (2 if swiglu else 1), x.dtype == torch.float32
    if part:
        division = parts_config(rows, n, part)
        # Gates and ups are two tiles.
        return replace(division, block_n=max(division.block_n // 2, 16)) if swiglu else division
    if not wide and OWN_ROWS < rows <= max_own_rows(weight.numel(), swiglu=swiglu):
        return small_config(rows, n, swiglu=swiglu)
    return gemm_config(rows, n, x.shape[1], swiglu=swiglu, wide=wide)
