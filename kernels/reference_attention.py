"""Paged attention in plain torch: a few large operations a layer, whatever the mix of rows.

Rows with the same number of query tokens and the same padded context length are one group: one gather of queries, one of
cache blocks, and one ``scaled_dot_product_attention``. What depends on the batch alone, and not on the layer, is worked
out once a step: an `AttentionPlan`.

On a CPU a query's result has the same bits in a decode, a verify, a prompt chunk of any size and any batch. torch's
kernel there takes keys 512 at a time and hands tiles of queries to BLAS, whose order of additions depends on the tile's
height, on the number of keys, and on where its buffers lie, which in turn depends on the height. With tiles that are a
multiple of a vector's worth high, and with certain numbers of keys, none of that shows: so both axes are padded to those.
They were found by trying (AVX2, MKL; every head size from 16 to 256); on a GPU torch promises nothing of the kind.

What a block holds past its sequence's end is hidden by the mask; it must be finite, as the cache's zeros and all keys and
values are.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from draftline.kernels.batch import Batch

_QUERY_MULTIPLE = 8 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 4
_KEY_BLOCK = 512
_KEYS_IN_LAST_BLOCK = (64, 128, 192, 384, 512)


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows of equal shape: B rows, M folded query positions, S keys.

    Attributes:
        queries: [B * M * G] indices of query heads, into [T * H].
        blocks: [B * ceil(S / block_size)] cache blocks, or a range of them where one row's lie in order.
        positions: [B, M] each folded query's position in its sequence.
        rows: B.
        keys: S.
    """

    queries: Tensor
    blocks: Tensor | slice
    positions: Tensor
    rows: int
    keys: int

    def mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """The additive mask [B, 1, M, S]: 0 where a query may look, minus infinity elsewhere."""
        position = self.positions[:, None, :, None]
        key = torch.arange(self.keys, device=position.device)
        hidden = key > position
        if window is not None:
            hidden |= key <= position - window
        return torch.zeros(hidden.shape, dtype=dtype, device=position.device).masked_fill_(hidden, -math.inf)

    def read(self, cache: Tensor, dtype: torch.dtype) -> Tensor:
        """The rows' keys or values from the paged ones, [B, G, S, D]."""
        blocks = self.blocks
        paged = cache[blocks] if isinstance(blocks, slice) else cache.index_select(0, blocks)
        return paged.view(self.rows, -1, *cache.shape[2:])[:, : self.keys].transpose(1, 2).to(dtype)


class AttentionPlan:
    """How the attention of one batch is computed, in all layers of one shape.

    Args:
        batch: the batch.
        q: [T or more, H, D] queries of one layer; only its shape matters.
        keys: [num_blocks, block_size, G, D] keys of one layer; only its shape matters.
    """

    def __init__(self, batch: Batch, q: Tensor, keys: Tensor) -> None:
        self._batch, self._layout = batch, (q.shape, keys.shape)
        padded_tokens, num_heads, _ = q.shape
        block_size, num_kv_heads = keys.shape[1:3]
        device = batch.token_ids.device
        starts = list(itertools.accumulate(batch.query_lens_host, initial=0))
        shapes: dict[tuple[int, int], list[int]] = {}
        for row, (query_len, context_len) in enumerate(
            zip(batch.query_lens_host, batch.context_lens_host, strict=True)
        ):
            shapes.setdefault((query_len, _padded_keys(context_len)), []).append(row)

        self._groups: list[_Group] = []
        for (query_len, num_keys), rows in shapes.items():
            token, queries = _fold([starts[row] for row in rows], query_len, num_heads, num_kv_heads, device)
            blocks = _blocks(batch, rows, -(-num_keys // block_size), keys)
            self._groups.append(_Group(queries, blocks, batch.positions[token], len(rows), num_keys))
        # Where each query head's result is among all groups' results; of a repeated one, any.
        source = torch.cat([group.queries for group in self._groups])
        self._results = torch.zeros(padded_tokens * num_heads, dtype=torch.int64, device=device)
        self._results[source] = torch.arange(source.shape[0], device=device)
        self._masks: dict[tuple[int | None, torch.dtype], list[Tensor]] = {}

    def serves(self, batch: Batch, q: Tensor, keys: Tensor) -> bool:
        """Whether the plan was made for this very batch and for layers of this shape."""
        return self._batch is batch and self._layout == (q.shape, keys.shape)

    def run(self, q: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None) -> Tensor:
        """[T or more, H, D] -> [T or more, H * D]; see ``Ops.attention``."""
        masks = self._masks.get((window, q.dtype))
        if masks is None:
            masks = self._masks[window, q.dtype] = [group.mask(window, q.dtype) for group in self._groups]
        head_dim, num_kv_heads = q.shape[2], keys.shape[2]
        q_heads = q.reshape(-1, head_dim)
        results = []
        for group, mask in zip(self._groups, masks, strict=True):
            queries = q_heads.index_select(0, group.queries)
            result = F.scaled_dot_product_attention(
                queries.view(group.rows, -1, num_kv_heads, head_dim).transpose(1, 2),
                group.read(keys, q.dtype),
                group.read(values, q.dtype),
                attn_mask=mask,
                scale=scale,
            )
            results.append(result.transpose(1, 2).reshape(-1, head_dim))
        joined = results[0] if len(results) == 1 else torch.cat(results)
        return joined.index_select(0, self._results).view(q.shape[0], -1)


def _padded_keys(context_len: int) -> int:
    """The number of keys that a row with this context is computed with."""
    whole, rest = divmod(context_len - 1, _KEY_BLOCK)
    return whole * _KEY_BLOCK + next(size for size in _KEYS_IN_LAST_BLOCK if size > rest)


def _fold(
    starts: list[int], query_len: int, num_heads: int, num_kv_heads: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Queries of rows that start at these tokens: the tokens [B, M], and the query heads [B * M * G].

    The heads that share a key head are folded into the query axis, heads within tokens. The padding repeats the last of
    them, so that no query is without keys.
    """
    group_size = num_heads // num_kv_heads
    folded = query_len * group_size
    fold = torch.arange(-(-folded // _QUERY_MULTIPLE) * _QUERY_MULTIPLE, device=device).clamp_(max=folded - 1)
    token = torch.tensor(starts, device=device)[:, None] + fold // group_size
    first_head = torch.arange(num_kv_heads, device=device) * group_size
    return token, ((token * num_heads + fold % group_size)[:, :, None] + first_head).flatten()


def _blocks(batch: Batch, rows: list[int], count: int, keys: Tensor) -> Tensor | slice:
    """The first ``count`` blocks of each of these rows.

    Entries past a row's last block are undefined. The mask hides them, but they must be blocks: its last one again, or,
    for one row whose blocks lie in order, whatever follows them, so that the cache need not be copied.
    """
    num_blocks, block_size = keys.shape[:2]
    last = [(batch.context_lens_host[row] - 1) // block_size for row in rows]
    if len(rows) == 1 and keys.device.type == "cpu":
        own = batch.block_tables[rows[0], : last[0] + 1].tolist()
        first = own[0]
        if first + count <= num_blocks and own == list(range(first, first + len(own))):
            return slice(first, first + count)
    device = batch.block_tables.device
    column = torch.minimum(torch.arange(count, device=device), torch.tensor(last, device=device)[:, None])
    return batch.block_tables[torch.tensor(rows, device=device)[:, None], column].flatten()
