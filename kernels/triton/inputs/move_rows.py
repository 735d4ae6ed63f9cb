"""Rows moved between tensors: taken from a table, put into one, or copied into a part of wider rows.

torch has an operation for each. A kernel of its own overlaps with its neighbours (`overlap.py`), as all others of a decode
step do.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.triton.overlap import launch_options, wait_for_previous
from draftline.kernels.triton.rows import empty_rows

_BLOCK = 1024


@triton.jit(do_not_specialize=["source_rows", "target_rows"])
def _move_rows_kernel(
    source: tl.tensor,
    target: tl.tensor,
    index: tl.tensor,
    source_stride: int,
    target_stride: int,
    source_rows: int,
    target_rows: int,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    TAKE: tl.constexpr,
    PUT: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """A negative index counts from the end."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < N
    wait_for_previous(OVERLAP)
    read = row
    written = row
    if TAKE:
        read = tl.load(index + row)
        read = tl.where(read < 0, read + source_rows, read)
    if PUT:
        written = tl.load(index + row)
        written = tl.where(written < 0, written + target_rows, written)
    value = tl.load(source + read * source_stride + cols, mask=mask)
    tl.store(target + written * target_stride + cols, value, mask=mask)


def _move(
    source: Tensor, target: Tensor, index: Tensor | None, rows: int, *, take: bool, put: bool, overlap: bool
) -> None:
    if not rows:
        return
    n = source.shape[1]
    block = min(_BLOCK, triton.next_power_of_2(n))
    _move_rows_kernel[(rows, triton.cdiv(n, block))](
        source,
        target,
        source if index is None else index,  # an unused argument must still be a tensor
        source.stride(0),
        target.stride(0),
        source.shape[0],
        target.shape[0],
        N=n,
        BLOCK=block,
        TAKE=take,
        PUT=put,
        OVERLAP=overlap,
        num_warps=4,
        **launch_options(overlap),
    )


def take_rows(table: Tensor, index: Tensor, *, overlap: bool = False) -> Tensor:
    """``Ops.take_rows`` by one kernel."""
    rows = index.shape[0]
    out = empty_rows(rows, table.shape[1], dtype=table.dtype, device=table.device)
    _move(table, out, index, rows, take=True, put=False, overlap=overlap)
    return out


def put_rows(rows: Tensor, index: Tensor, table: Tensor, *, overlap: bool = False) -> None:
    """``Ops.put_rows`` by one kernel."""
    _move(rows, table, index, rows.shape[0], take=False, put=True, overlap=overlap)


def copy_rows(rows: Tensor, out: Tensor, *, overlap: bool = False) -> None:
    """``Ops.copy_rows`` by one kernel."""
    _move(rows, out, None, rows.shape[0], take=False, put=False, overlap=overlap)
