"""The exchanges between GPUs whose arrival a flag tells (`collectives.py`).

A program sends its block of elements to each peer, then a flag behind it, waits for the peers' flags, and reads theirs in its inbox. A
rank that waits for `_PATIENCE` rounds stops its GPU with an error.
"""

from __future__ import annotations

import triton
import triton.language as tl

from draftline.kernels.triton.inbox import cell_of, flag_of
from draftline.kernels.triton.overlap import wait_for_previous
from draftline.kernels.triton.sums import INTERPRETED

_PATIENCE = tl.constexpr(1 << 26)
"""Rounds of waiting, of about a microsecond each."""


@triton.jit
def _stop() -> None:
    """Stop the device with an error."""
    if not INTERPRETED:
        tl.inline_asm_elementwise(
            "trap; mov.b32 $0, 0;", "=r,r", [tl.program_id(0)], dtype=tl.int32, is_pure=False, pack=1
        )


@triton.jit
def _meet(inboxes: tl.tensor, count: tl.tensor, RANK: tl.constexpr, SIZE: tl.constexpr) -> None:
    """Tell every peer that its cell is written, and wait until theirs are in this rank's inbox."""
    program = tl.program_id(0)
    # The flag must not arrive before any thread's elements.
    tl.debug_barrier()
    for peer in tl.static_range(SIZE):
        if peer != RANK:
            flag = flag_of(tl.load(inboxes + peer), program, RANK, SIZE)
            tl.atomic_xchg(flag, count, sem="release", scope="sys")
    own = tl.load(inboxes + RANK)
    for peer in tl.static_range(SIZE):
        if peer != RANK:
            flag = flag_of(own, program, peer, SIZE)
            rounds = 0
            # The peer may be one exchange ahead. Counts wrap around, so that their difference decides.
            behind = count - tl.atomic_add(flag, 0, sem="acquire", scope="sys")
            while behind > 0:
                behind = count - tl.atomic_add(flag, 0, sem="acquire", scope="sys")
                rounds += 1
                if rounds > _PATIENCE:
                    _stop()
    tl.debug_barrier()


@triton.jit
def _exchange(
    value: tl.tensor,
    cols: tl.tensor,
    mask: tl.tensor,
    inboxes: tl.tensor,
    count: tl.tensor,
    RANK: tl.constexpr,
    SIZE: tl.constexpr,
    dtype: tl.constexpr,
) -> None:
    """Send a block to every peer, and wait until theirs are in this rank's inbox."""
    for peer in tl.static_range(SIZE):
        if peer != RANK:
            cell = cell_of(tl.load(inboxes + peer), tl.program_id(0), RANK, count, SIZE, dtype)
            tl.store(cell + cols, value, mask=mask)
    _meet(inboxes, count, RANK, SIZE)


@triton.jit
def _received(
    inbox: tl.tensor,
    cols: tl.tensor,
    mask: tl.tensor,
    sender: tl.constexpr,
    count: tl.tensor,
    SIZE: tl.constexpr,
    dtype: tl.constexpr,
) -> tl.tensor:
    """A peer's block. Past the first cache, which does not see what peers write."""
    cell = cell_of(inbox, tl.program_id(0), sender, count, SIZE, dtype)
    return tl.load(cell + cols, mask=mask, other=0, cache_modifier=".cg")


@triton.jit
def _sum_of_parts(
    value: tl.tensor,
    cols: tl.tensor,
    at: tl.tensor,
    mask: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    inbox: tl.tensor,
    count: tl.tensor,
    N: tl.tensor,
    RANK: tl.constexpr,
    SIZE: tl.constexpr,
    BIAS: tl.constexpr,
    ADD: tl.constexpr,
) -> tl.tensor:
    """This rank's elements ``at`` and what its peers have sent of theirs, with bias and residual, in ``value``'s type."""
    total = tl.zeros(value.shape, tl.float32)
    for rank in tl.static_range(SIZE):
        part = value if rank == RANK else _received(inbox, cols, mask, rank, count, SIZE, value.dtype)
        total = part.to(tl.float32) if rank == 0 else total + part.to(tl.float32)
    if BIAS:
        total += tl.load(bias + at % N, mask=mask, other=0.0).to(tl.float32)
    if ADD:
        total = tl.load(residual + at, mask=mask, other=0.0).to(tl.float32) + total
    return total.to(value.dtype)


@triton.jit
def one_shot_sum_kernel(
    partial: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    out: tl.tensor,
    inboxes: tl.tensor,
    counts: tl.tensor,
    num_elements: int,
    N: int,
    RANK: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    BIAS: tl.constexpr,
    ADD: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """A block may have many rows, or a part of one."""
    wait_for_previous(OVERLAP)
    program = tl.program_id(0)
    count = tl.load(counts + program)
    own = tl.load(inboxes + RANK)
    cols = tl.arange(0, BLOCK)
    for item in range(program, tl.cdiv(num_elements, BLOCK), tl.num_programs(0)):
        count += 1
        at = item * BLOCK + cols
        mask = at < num_elements
        value = tl.load(partial + at, mask=mask, other=0.0)
        _exchange(value, cols, mask, inboxes, count, RANK, SIZE, value.dtype)
        total = _sum_of_parts(value, cols, at, mask, bias, residual, own, count, N, RANK, SIZE, BIAS, ADD)
        tl.store(out + at, total, mask=mask)
    tl.store(counts + program, count)


@triton.jit
def two_shot_sum_kernel(
    partial: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    out: tl.tensor,
    inboxes: tl.tensor,
    counts: tl.tensor,
    num_elements: int,
    N: int,
    RANK: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    BIAS: tl.constexpr,
    ADD: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """The ranks' blocks lie behind each other: of each SIZE blocks, a rank adds one, and receives the other sums from its peers."""
    wait_for_previous(OVERLAP)
    program = tl.program_id(0)
    dtype: tl.constexpr = partial.dtype.element_ty
    count = tl.load(counts + program)
    own = tl.load(inboxes + RANK)
    cols = tl.arange(0, BLOCK)
    for item in range(program, tl.cdiv(num_elements, SIZE * BLOCK), tl.num_programs(0)):
        count += 1
        for peer in tl.static_range(SIZE):
            if peer != RANK:
                at = (item * SIZE + peer) * BLOCK + cols
                mask = at < num_elements
                cell = cell_of(tl.load(inboxes + peer), program, RANK, count, SIZE, dtype)
                tl.store(cell + cols, tl.load(partial + at, mask=mask, other=0.0), mask=mask)
        _meet(inboxes, count, RANK, SIZE)
        at = (item * SIZE + RANK) * BLOCK + cols
        mask = at < num_elements
        value = tl.load(partial + at, mask=mask, other=0.0)
        total = _sum_of_parts(value, cols, at, mask, bias, residual, own, count, N, RANK, SIZE, BIAS, ADD)
        tl.store(out + at, total, mask=mask)
        count += 1
        _exchange(total, cols, mask, inboxes, count, RANK, SIZE, dtype)
        for rank in tl.static_range(SIZE):
            if rank != RANK:
                at = (item * SIZE + rank) * BLOCK + cols
                mask = at < num_elements
                tl.store(out + at, _received(own, cols, mask, rank, count, SIZE, dtype), mask=mask)
    tl.store(counts + program, count)


@triton.jit
def exchange_columns_kernel(
    part: tl.tensor,
    starts: tl.tensor,
    out: tl.tensor,
    inboxes: tl.tensor,
    counts: tl.tensor,
    items: int,
    blocks: int,
    width: int,
    out_width: int,
    RANK: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    MULTIPLE: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """All of ``starts`` are multiples of MULTIPLE, so that a thread can copy several elements at once."""
    wait_for_previous(OVERLAP)
    program = tl.program_id(0)
    dtype: tl.constexpr = part.dtype.element_ty
    count = tl.load(counts + program)
    own = tl.load(inboxes + RANK)
    for item in range(program, items, tl.num_programs(0)):
        count += 1
        cols = tl.arange(0, BLOCK)
        n = item % blocks * BLOCK + cols
        row = tl.cast(item // blocks, tl.int64)
        mask = n < width
        value = tl.load(part + row * width + n, mask=mask, other=0)
        _exchange(value, cols, mask, inboxes, count, RANK, SIZE, dtype)
        for rank in tl.static_range(SIZE):
            start = tl.multiple_of(tl.load(starts + rank), MULTIPLE)
            theirs = n < tl.multiple_of(tl.load(starts + rank + 1), MULTIPLE) - start
            got = value if rank == RANK else _received(own, cols, theirs, rank, count, SIZE, dtype)
            tl.store(out + row * out_width + start + n, got, mask=theirs)
    tl.store(counts + program, count)
