"""Activations with room for whole tiles of rows.

A matrix product copies its tiles by tensor descriptors. Where a tile reaches beyond the tensor, the hardware fills in zeros,
which takes it longer than a copy: the down projection of Llama-8B took 63 µs with 24 rows, 35 with 64. So kernels allocate
their results with room for whole tiles, and the descriptor of a product covers the room. What lies there is undefined. It
reaches the results of no other row, and those of its own are not stored.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from draftline.kernels.triton.sums import INTERPRETED

_FEW_ROWS = 16
"""Up to so many rows, products have no descriptors."""


def empty_rows(rows: int, *shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[rows, *shape], contiguous and not initialised, in memory that has room for whole tiles."""
    # The interpreter would warn of overflows in what lies behind the rows.
    make = torch.zeros if INTERPRETED else torch.empty
    return make((_whole_tiles(rows), *shape), dtype=dtype, device=device)[:rows]


def rows_with_room(x: Tensor) -> int:
    """The rows that a product of a contiguous [M, …] may copy: whole tiles if its memory has them, else M."""
    rows, width = x.shape[0], prod(x.shape[1:])
    memory = x.untyped_storage().nbytes() // x.element_size() - x.storage_offset()
    return _whole_tiles(rows) if _whole_tiles(rows) * width <= memory else rows


def _whole_tiles(rows: int) -> int:
    if rows <= _FEW_ROWS:
        return rows
    tile = 64 if rows <= 64 else 128
    return -(-rows // tile) * tile
