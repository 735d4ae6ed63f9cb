"""Attention over an FP8 cache on the matrix units, where activations have 16 bits.

The units multiply float16: it represents every e4m3 number, and one instruction converts two. For bfloat16 the conversion
takes several instructions, one of them slow. Products with values need two keys' numbers next to each other, but the
copies that transpose tiles move pairs of bytes. So values are read as pairs of dimensions, with separate sums for even and
odd ones. Large tiles of queries, which the products bound, read values one by one: each sum is the same.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_PAIR_ROWS = 32
"""The largest tile of queries that reads pairs: larger ones run on Hopper's warpgroup units, which gave wrong results for
pairs of 32 (triton 3.6.0), and are bound by products in any case."""


def multiplies_float16(cache: Tensor, activations: Tensor) -> bool:
    """Whether keys and values of a cache of this type are multiplied as float16."""
    return cache.dtype == torch.float8_e4m3fn and activations.element_size() == 2


@triton.jit
def as_float16(query: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Queries [M, D] as float16, and the powers of two [M, 1] that they were divided by.

    So a row's largest magnitude is between 1 and 2: nothing overflows, and the error is below 2^-25 of the largest.
    """
    query = query.to(tl.float32)
    largest = tl.maximum(tl.max(tl.abs(query), axis=1), 1.0e-30)
    power = (largest.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)[:, None]
    return (query / power).to(tl.float16), power


@triton.jit
def load_pairs(
    cache: tl.tensor, offset: tl.tensor, seen: tl.tensor, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """The even and the odd dimensions of the heads at ``offset`` [N], each [N, BLOCK_D / 2] float16.

    Heads that are not ``seen`` [N] (None: all are) are zeros.
    """
    pair = tl.arange(0, BLOCK_D // 2)[None, :]
    pointer = cache.to(tl.pointer_type(tl.int16), bitcast=True) + (offset >> 1)[:, None] + pair
    if seen is not None:
        mask = seen[:, None]
        if HEAD_DIM != BLOCK_D:
            mask = mask & (pair < HEAD_DIM // 2)
        stored = tl.load(pointer, mask=mask, other=0)
    elif HEAD_DIM != BLOCK_D:
        stored = tl.load(pointer, mask=pair < HEAD_DIM // 2, other=0)
    else:
        stored = tl.load(pointer)
    # Two pairs at a time, of two keys: (a0 a1) (b0 b1) to (a0 b0) (a1 b1).
    even, odd = tl.inline_asm_elementwise(
        """{
        .reg .b16 first, second;
        .reg .b32 a, b;
        mov.b32 {first, second}, $2;
        cvt.rn.f16x2.e4m3x2 a, first;
        cvt.rn.f16x2.e4m3x2 b, second;
        prmt.b32 $0, a, b, 0x5410;
        prmt.b32 $1, a, b, 0x7632;
        }""",
        "=r,=r,r",
        [stored],
        dtype=(tl.float16, tl.float16),
        is_pure=True,
        pack=2,
    )
    return even, odd
