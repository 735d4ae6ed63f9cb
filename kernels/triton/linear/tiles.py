"""Which tile of a product's result a program has."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def place_of_tile(
    tile: tl.tensor,
    num_rows: tl.tensor,
    N: tl.tensor,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    TOGETHER: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """The first row and the first column of a tile of [num_rows, N].

    Tiles that follow each other share columns: TOGETHER row tiles, which so find the weight's tile in the L2 cache.
    """
    tiles_n = tl.cdiv(N, BLOCK_N)
    first_tile = tile // (TOGETHER * tiles_n) * TOGETHER
    in_band = tl.minimum(tl.cdiv(num_rows, BLOCK_M) - first_tile, TOGETHER)
    within = tile % (TOGETHER * tiles_n)
    return (first_tile + within % in_band) * BLOCK_M, within // in_band * BLOCK_N
