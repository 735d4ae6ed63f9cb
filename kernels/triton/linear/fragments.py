"""Products on the matrix units from registers, with no pass through shared memory.

Tiles have 8 rows and 32 channels for each warp, [8 W, 32]: thread 4 i + j of a warp has the warp's row i and 8 neighbouring
channels, from 8 j on. The unit
wants another arrangement of the same rows (PTX ISA, "Matrix Fragments for mma.m16n8k16"): pairs of neighbouring channels,
each of 16 channels' pairs spread over the four threads of a row. So these four exchange pairs, as a 4 x 4 transpose.
The compiler chooses the layout of a tile; a test reads off the compiled kernel that it is this one.
"""

from __future__ import annotations

import triton
import triton.language as tl

from draftline.kernels.triton.sums import INTERPRETED

_SPREAD = """
        selp.b32 s0, {w}0, {w}1, odd;
        selp.b32 s1, {w}2, {w}3, odd;
        shfl.sync.bfly.b32 r0, s0, 1, 31, 0xffffffff;
        shfl.sync.bfly.b32 r1, s1, 1, 31, 0xffffffff;
        selp.b32 {w}0, r0, {w}0, odd;
        selp.b32 {w}1, {w}1, r0, odd;
        selp.b32 {w}2, r1, {w}2, odd;
        selp.b32 {w}3, {w}3, r1, odd;
        selp.b32 s0, {w}0, {w}2, high;
        selp.b32 s1, {w}1, {w}3, high;
        shfl.sync.bfly.b32 r0, s0, 2, 31, 0xffffffff;
        shfl.sync.bfly.b32 r1, s1, 2, 31, 0xffffffff;
        selp.b32 s0, r0, {w}0, high;
        selp.b32 s1, r1, {w}1, high;
        selp.b32 {w}2, {w}2, r0, high;
        selp.b32 {w}3, {w}3, r1, high;
        mov.b32 {w}0, s0;
        mov.b32 {w}1, s1;
"""
"""A 4 x 4 transpose: word i of thread j becomes word j of thread i."""

_MULTIPLY = """
        mma.sync.aligned.m16n8k16.row.col.f32.{type}.{type}.f32 {{{sums}}}, {{a0, b0, a1, b1}}, {{{x}0, {x}1}}, {{{sums}}};
        mma.sync.aligned.m16n8k16.row.col.f32.{type}.{type}.f32 {{{sums}}}, {{a2, b2, a3, b3}}, {{{x}2, {x}3}}, {{{sums}}};
"""


def _assembly(kind: str, tiles: int) -> str:
    """The instructions for ``tiles`` of 8 rows of x each: sums in $0-$7, then $8-$15 before; words of both operands."""
    lines = ["{", ".reg .b32 lane, s0, s1, r0, r1;", ".reg .pred odd, high;"]
    names = ["a", "b", "x", "y"][: 2 + tiles]
    lines += [f".reg .b32 {name}0, {name}1, {name}2, {name}3;" for name in names]
    lines += [f"mov.b32 {name}{word}, ${16 + 4 * at + word};" for at, name in enumerate(names) for word in range(4)]
    lines += [f"mov.f32 ${at}, ${8 + at};" for at in range(8)]
    lines += ["mov.u32 lane, %laneid;", "and.b32 s0, lane, 1;", "setp.ne.u32 odd, s0, 0;"]
    lines += ["and.b32 s0, lane, 2;", "setp.ne.u32 high, s0, 0;"]
    lines += [_SPREAD.format(w=name) for name in names]
    for at, name in enumerate(names[2:]):
        sums = ", ".join(f"${4 * at + element}" for element in range(4))
        lines.append(_MULTIPLY.format(type=kind, sums=sums, x=name))
    return "\n".join([*lines, "}"])


def _constraints(tiles: int) -> str:
    return ",".join(["=&f"] * 8 + ["f"] * 8 + ["r"] * 4 * (2 + tiles))


_ONE_BF16 = tl.constexpr(_assembly("bf16", 1))
_TWO_BF16 = tl.constexpr(_assembly("bf16", 2))
_ONE_F16 = tl.constexpr(_assembly("f16", 1))
_TWO_F16 = tl.constexpr(_assembly("f16", 2))
_ONE = tl.constexpr(_constraints(1))
_TWO = tl.constexpr(_constraints(2))


@triton.jit
def _emulated(acc: tl.tensor, low: tl.tensor, high: tl.tensor, x: tl.tensor, y: tl.tensor) -> tl.tensor:
    """What the assembly adds, for the interpreter."""
    tiles: tl.constexpr = (acc.shape[0] // 8, 8, 1, 32)
    turned: tl.constexpr = (acc.shape[0] // 8, 1, 8, 32)
    rows = (tl.reshape(low.to(tl.float32), tiles), tl.reshape(high.to(tl.float32), tiles))
    tokens = (tl.reshape(x.to(tl.float32), turned), tl.reshape(y.to(tl.float32), turned))
    shape: tl.constexpr = (acc.shape[0] // 8, 8, 4, 2)
    first = tl.join(
        tl.reshape(tl.sum(rows[0] * tokens[0], axis=3), shape), tl.reshape(tl.sum(rows[1] * tokens[0], axis=3), shape)
    )
    second = tl.join(
        tl.reshape(tl.sum(rows[0] * tokens[1], axis=3), shape), tl.reshape(tl.sum(rows[1] * tokens[1], axis=3), shape)
    )
    # [W, 8 rows, 4 threads, 2 tokens, 2 halves, 2 tiles] to the order of `positions`.
    both = tl.permute(tl.join(first, second), (0, 1, 2, 5, 4, 3))
    return acc + tl.reshape(both, acc.shape)


@triton.jit
def multiply(
    acc: tl.tensor, low: tl.tensor, high: tl.tensor, x: tl.tensor, y: tl.tensor, TILES: tl.constexpr
) -> tl.tensor:
    """Add 32 channels' products of 16 weight rows and of 8 or 16 tokens to the sums.

    Args:
        acc: [8 W, 32] float32, the sums of W warps, each warp's arranged as `positions` says.
        low: [8 W, 32], the first 8 weight rows.
        high: [8 W, 32], the others.
        x: [8 W, 32], the first 8 tokens.
        y: [8 W, 32], the others; unused with one tile.
        TILES: 1 or 2 tiles of 8 tokens.
    """
    if INTERPRETED:
        return _emulated(acc, low, high, x, y)
    if TILES == 1:
        text: tl.constexpr = _ONE_BF16 if low.dtype == tl.bfloat16 else _ONE_F16
        return tl.inline_asm_elementwise(
            text, _ONE, [acc, low, high, x], dtype=tl.float32, is_pure=True, pack=8
        )  # fmt: skip
    else:
        text: tl.constexpr = _TWO_BF16 if low.dtype == tl.bfloat16 else _TWO_F16
        return tl.inline_asm_elementwise(
            text, _TWO, [acc, low, high, x, y], dtype=tl.float32, is_pure=True, pack=8
        )  # fmt: skip


@triton.jit
def positions() -> tuple[tl.tensor, tl.tensor]:
    """The weight row (of 16) and the token (of 16) of each of `multiply`'s sums, [8, 32]."""
    row = tl.arange(0, 8)[:, None]
    col = tl.arange(0, 32)[None, :]
    token = col // 4 % 2 * 8 + col // 8 * 2 + col % 2
    return row + col // 2 % 2 * 8, token + row * 0
