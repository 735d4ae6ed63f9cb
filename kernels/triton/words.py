"""Few elements from rank to rank: 32 bits of them in a word of 64, beside the count of the exchange that they belong to.

A device writes and reads 64 bits at once. So the reader knows from a word itself that it has arrived, and takes it as soon as it
has. With a flag behind the elements (`collectives.py`) the sender must first wait until all of them have arrived, which is
another trip over the link. Words take twice the elements' bytes, so larger messages have a flag.

The counts tell exchanges apart: a word in a cell is an earlier exchange's until it has the count that is waited for.
"""

from __future__ import annotations

import triton
import triton.language as tl

from draftline.kernels.triton.inbox import words_of
from draftline.kernels.triton.overlap import wait_for_previous
from draftline.kernels.triton.sums import INTERPRETED

MAX_WORDS = 131072
"""The most words that a rank sends in an exchange."""

WORD_ELEMENT_BYTES = 4
"""Bytes of elements in a word: a float32, or two of 16 bits."""


@triton.jit
def _floats(bits: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    """[W] int32 -> [W, elements of a word] float32."""
    if dtype.primitive_bitwidth == 16:
        first = bits.to(tl.int16).to(dtype, bitcast=True)
        second = (bits >> 16).to(tl.int16).to(dtype, bitcast=True)
        return tl.join(first, second).to(tl.float32)
    else:
        return tl.reshape(bits.to(dtype, bitcast=True), (bits.shape[0], 1)).to(tl.float32)


@triton.jit
def _bits(values: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    """The inverse of `_floats`, rounded to ``dtype``."""
    if dtype.primitive_bitwidth == 16:
        first, second = tl.split(values.to(dtype).to(tl.int16, bitcast=True).to(tl.int32))
        return (first & 0xFFFF) | (second << 16)
    else:
        return tl.reshape(values.to(dtype).to(tl.int32, bitcast=True), (values.shape[0],))


@triton.jit
def _elements(tensor: tl.tensor, at: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """The elements of the words ``at`` of a tensor, as bits."""
    return tl.load(tensor.to(tl.pointer_type(tl.int32)) + at, mask=mask, other=0)


@triton.jit
def _send(words: tl.tensor, bits: tl.tensor, count: tl.tensor, mask: tl.tensor) -> None:
    """Write a word for each element of the mask: its bits below, the count above."""
    if INTERPRETED:
        tl.store(words, (bits.to(tl.int64) & 0xFFFFFFFF) | (count.to(tl.int64) << 32), mask=mask)
    else:
        tl.inline_asm_elementwise(
            """{
            .reg .pred wanted;
            .reg .b64 word;
            setp.ne.s32 wanted, $4, 0;
            mov.b64 word, {$2, $3};
            @wanted st.relaxed.sys.global.b64 [$1], word;
            mov.b32 $0, 0;
            }""",
            "=r,l,r,r,r",
            [words.to(tl.int64), bits, count, mask.to(tl.int32)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def _receive(words: tl.tensor, count: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """Wait for the exchange's word of each element of the mask, and return its bits.

    Each thread waits for its own. A thread that waits for 2^27 rounds, a minute or so, stops the device with an error.
    """
    if INTERPRETED:
        word = tl.load(words, mask=mask, other=0, volatile=True)
        while tl.sum((mask & ((word >> 32).to(tl.int32) != count)).to(tl.int32), axis=0) > 0:
            word = tl.load(words, mask=mask, other=0, volatile=True)
        return word.to(tl.int32)
    else:
        return tl.inline_asm_elementwise(
            """{
            .reg .pred done;
            .reg .b64 word;
            .reg .b32 bits, flag, rounds;
            mov.b32 bits, 0;
            mov.b32 rounds, 0;
            setp.eq.s32 done, $3, 0;
            @done bra ARRIVED;
            WAIT:
            ld.relaxed.sys.global.b64 word, [$1];
            mov.b64 {bits, flag}, word;
            setp.eq.s32 done, flag, $2;
            @done bra ARRIVED;
            add.u32 rounds, rounds, 1;
            setp.lt.u32 done, rounds, 0x8000000;
            @done bra WAIT;
            trap;
            ARRIVED:
            mov.b32 $0, bits;
            }""",
            "=r,l,r,r",
            [words.to(tl.int64), count, mask.to(tl.int32)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit(do_not_specialize=["K"])
def word_spread_kernel(
    values: tl.tensor,
    out: tl.tensor,
    inboxes: tl.tensor,
    counts: tl.tensor,
    K: int,
    RANK: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """A block of rank 0's [K] int64 values a program, each below 2^31. All ranks send, so that each knows how far the others are."""
    program = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    n = program * BLOCK + cols
    mask = n < K
    own = tl.load(inboxes + RANK)
    count = tl.load(counts + program) + 1
    value = tl.load(values + n, mask=mask, other=0).to(tl.int32)
    for peer in tl.static_range(SIZE):
        if peer != RANK:
            _send(words_of(tl.load(inboxes + peer), program, RANK, count, SIZE) + cols, value, count, mask)
    result = value
    for rank in tl.static_range(SIZE):
        if rank != RANK:
            got = _receive(words_of(own, program, rank, count, SIZE) + cols, count, mask)
            if rank == 0:
                result = got
    tl.store(out + n, result.to(tl.int64), mask=mask)
    tl.debug_barrier()  # all threads have read the count
    tl.store(counts + program, count)


@triton.jit
def word_sum_kernel(
    partial: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    out: tl.tensor,
    inboxes: tl.tensor,
    counts: tl.tensor,
    N: int,
    RANK: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    BIAS: tl.constexpr,
    ADD: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """One block of the N words of a row's sum a program: the arithmetic of `collectives.py`, in the order of the ranks."""
    program = tl.program_id(0)
    dtype: tl.constexpr = partial.dtype.element_ty
    blocks = tl.cdiv(N, BLOCK)
    cols = tl.arange(0, BLOCK)
    n = program % blocks * BLOCK + cols
    mask = n < N
    at = tl.cast(program // blocks, tl.int64) * N + n
    # Addresses and biases never change. The count does, with every exchange.
    own = tl.load(inboxes + RANK)
    shift = cols
    if BIAS:
        shift = _elements(bias, n, mask)
    wait_for_previous(OVERLAP)
    count = tl.load(counts + program) + 1
    bits = _elements(partial, at, mask)
    for peer in tl.static_range(SIZE):
        if peer != RANK:
            _send(words_of(tl.load(inboxes + peer), program, RANK, count, SIZE) + cols, bits, count, mask)
    # While the words travel:
    before = cols
    if ADD:
        before = _elements(residual, at, mask)
    total = tl.zeros_like(_floats(bits, dtype))
    for rank in tl.static_range(SIZE):
        part = bits
        if rank != RANK:
            part = _receive(words_of(own, program, rank, count, SIZE) + cols, count, mask)
        total = _floats(part, dtype) if rank == 0 else total + _floats(part, dtype)
    if BIAS:
        total += _floats(shift, dtype)
    if ADD:
        total = _floats(before, dtype) + total
    tl.store(out.to(tl.pointer_type(tl.int32)) + at, _bits(total, dtype), mask=mask)
    tl.debug_barrier()  # all threads have read the count
    tl.store(counts + program, count)
