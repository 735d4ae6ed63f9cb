"""Grouping of a batch's rows for the reference attention: rows of equal shape are computed together.

Rows with the same number of query tokens and the same padded context length are one group: one gather of queries, one of
keys and values, and one ``scaled_dot_product_attention`` a layer (`functional.attend`).

On a CPU a query's result has the same bits in a decode, a verify, a prompt chunk of any size and any batch. torch's
kernel there takes keys 512 at a time and passes tiles of queries to BLAS. BLAS's order of additions depends on the tile's
height, on the number of keys, and on the addresses of its buffers, which depend on the height too. With tile heights that
are multiples of a vector's length, and with certain numbers of keys, the order is always the same. So both axes are padded
to such sizes. They were found by experiment (AVX2, MKL; every head size from 16 to 256). On a GPU torch makes no such
promise.

The mask hides keys beyond a sequence's own (the rest of its last block, a neighbour's). They must be finite, as the
cache's zeros and all keys and values are.
"""

from __future__ import annotations

import torch

from draftline.kernels.batch import Batch
from draftline.kernels.reference.functional_step import RowGroup

_QUERY_MULTIPLE = 8 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 4
_KEY_BLOCK = 512
_KEYS_IN_LAST_BLOCK = (64, 128, 192, 384, 512)


def group_rows(batch: Batch, heads_per_key: int, num_blocks: int, block_size: int) -> list[RowGroup]:
    """The groups of a batch.

    Args:
        batch: the batch.
        heads_per_key: query heads that share a key head, H / G.
        num_blocks: blocks of the cache.
        block_size: tokens a cache block.
    """
    shapes: dict[tuple[int, int], tuple[list[int], list[int], list[int]]] = {}
    first_token = 0
    for row, (query_len, context_len) in enumerate(zip(batch.query_lens_host, batch.context_lens_host, strict=True)):
        rows, first_tokens, context_lens = shapes.setdefault((query_len, _padded_keys(context_len)), ([], [], []))
        rows.append(row)
        first_tokens.append(first_token)
        context_lens.append(context_len)
        first_token += query_len
    groups = []
    for (query_len, keys), (rows, first_tokens, context_lens) in shapes.items():
        queries = -(-query_len * heads_per_key // _QUERY_MULTIPLE) * _QUERY_MULTIPLE
        first = _first_index(batch, rows, keys, num_blocks, block_size)
        groups.append(RowGroup(rows, first_tokens, context_lens, query_len, queries, keys, first))
    return groups


def _padded_keys(context_len: int) -> int:
    """The padded number of keys for a row with this context."""
    whole, rest = divmod(context_len - 1, _KEY_BLOCK)
    return whole * _KEY_BLOCK + next(size for size in _KEYS_IN_LAST_BLOCK if size > rest)


def _first_index(batch: Batch, rows: list[int], keys: int, num_blocks: int, block_size: int) -> int:
    """The first cache entry of one row, if its entries are contiguous, so that the cache need not be copied; else -1.

    The entries behind them are read as well; the mask hides them.
    """
    if len(rows) > 1 or batch.block_tables.device.type != "cpu":
        return -1
    own: list[int] = batch.block_tables[rows[0], : -(-batch.context_lens_host[rows[0]] // block_size)].tolist()
    first = own[0] * block_size
    in_order = own == list(range(own[0], own[0] + len(own)))
    return first if in_order and first + keys <= num_blocks * block_size else -1
