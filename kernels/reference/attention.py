"""Grouping of a batch's rows for the reference attention: rows of equal shape are computed together.

Rows with the same number of query tokens and the same padded context length are one group: one gather of queries, one
of keys and values, and one ``scaled_dot_product_attention`` a layer (`functional.attend`).

On a CPU a query's result has the same bits in a decode, a verify, a prompt chunk of any size and any batch, since
queries and keys are padded to sizes that BLAS adds in the same order (`attention_sizes`). On a GPU torch makes no such
promise.

The mask hides keys beyond a sequence's own (the rest of its last block, a neighbour's). They must be finite, as the
cache's zeros and all keys and values are.
"""

from __future__ import annotations

from draftline.kernels.batch import Batch
from draftline.kernels.reference.attention_sizes import AttentionSizes
from draftline.kernels.reference.functional_step import RowGroup


def group_rows(
    batch: Batch, heads_per_key: int, sizes: AttentionSizes, num_blocks: int, block_size: int
) -> list[RowGroup]:
    """The groups of a batch.

    Args:
        batch: the batch.
        heads_per_key: query heads that share a key head, H / G.
        sizes: what to pad to.
        num_blocks: blocks of the cache.
        block_size: tokens a cache block.
    """
    shapes: dict[tuple[int, int], tuple[list[int], list[int], list[int]]] = {}
    first_token = 0
    for row, (query_len, context_len) in enumerate(zip(batch.query_lens_host, batch.context_lens_host, strict=True)):
        rows, first_tokens, context_lens = shapes.setdefault((query_len, sizes.padded_keys(context_len)), ([], [], []))
        rows.append(row)
        first_tokens.append(first_token)
        context_lens.append(context_len)
        first_token += query_len
    groups = []
    for (query_len, keys), (rows, first_tokens, context_lens) in shapes.items():
        queries = sizes.padded_queries(query_len * heads_per_key)
        first = _first_index(batch, rows, keys, num_blocks, block_size)
        groups.append(RowGroup(rows, first_tokens, context_lens, query_len, queries, keys, first))
    return groups


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
