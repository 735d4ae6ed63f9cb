"""Paged attention in plain torch: a few large operations a step, whatever the mix of rows.

Rows with the same number of query tokens and the same padded context length are one group: one gather of queries, of
cache blocks, and one ``scaled_dot_product_attention``. What depends on the batch alone, and not on the layer, is worked
out once a step: an `AttentionPlan`.

A query's result has the same bits in a decode, a verify, a prompt chunk of any size and any batch, as far as torch
allows. torch's CPU kernel hands tiles of queries to BLAS, whose results depend on the tile's height and on the alignment
of its buffers where the height is odd; so the query axis is padded to a multiple of ``_QUERY_MULTIPLE`` and the key axis
to one of ``_KEY_MULTIPLE``. (On a GPU, torch promises nothing of the kind.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from draftline.kernels.batch import Batch

_QUERY_MULTIPLE = 8
_KEY_MULTIPLE = 64


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows of equal shape: B rows, M folded query positions, S keys.

    Attributes:
        queries: [B * M * G] indices of query heads, into [T * H].
        blocks: [B * S / block_size] cache blocks.
        positions: [B, M] each folded query's position in its sequence.
        rows: B.
        keys: S.
    """

    queries: Tensor
    blocks: Tensor
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


class AttentionPlan:
    """How the attention of one batch is computed, in every layer.

    Args:
        batch: the batch.
        num_heads: H.
        num_kv_heads: G.
        block_size: tokens a cache block.
    """

    def __init__(self, batch: Batch, num_heads: int, num_kv_heads: int, block_size: int) -> None:
        shapes: dict[tuple[int, int], list[int]] = {}
        unit = math.lcm(_KEY_MULTIPLE, block_size)
        for row, lengths in enumerate(zip(batch.query_lens_host, batch.context_lens_host, strict=True)):
            query_len, context_len = lengths
            shapes.setdefault((query_len, -(-context_len // unit) * unit), []).append(row)
        self._batch, self._layout, self._num_kv_heads = batch, (num_heads, num_kv_heads, block_size), num_kv_heads
        self._groups: list[_Group] = []
        starts = [0]
        for query_len in batch.query_lens_host:
            starts.append(starts[-1] + query_len)
        group_size = num_heads // num_kv_heads
        device = batch.token_ids.device
        sources: list[Tensor] = []
        for (query_len, keys), rows in shapes.items():
            # The heads that share a key head are folded into the query axis, heads within tokens; the padding repeats
            # the last of them, so that no query is without keys.
            folded = query_len * group_size
            padded = -(-folded // _QUERY_MULTIPLE) * _QUERY_MULTIPLE
            fold = torch.arange(padded, device=device).clamp_(max=folded - 1)
            token = torch.tensor([starts[row] for row in rows], device=device)[:, None] + fold // group_size
            first_head = torch.arange(num_kv_heads, device=device) * group_size
            queries = (token * num_heads + fold % group_size)[:, :, None] + first_head
            # Entries past a row's last block are undefined: the mask hides them, but they must be blocks.
            last = torch.tensor([(batch.context_lens_host[row] - 1) // block_size for row in rows], device=device)
            column = torch.minimum(torch.arange(keys // block_size, device=device), last[:, None])
            blocks = batch.block_tables[torch.tensor(rows, device=device)[:, None], column]
            self._groups.append(_Group(queries.flatten(), blocks.flatten(), batch.positions[token], len(rows), keys))
            sources.append(queries.flatten())
        # Where each query head's result is among all groups' results; of a repeated one, any.
        source = torch.cat(sources)
        self._results = torch.empty(starts[-1] * num_heads, dtype=torch.int64, device=device)
        self._results[source] = torch.arange(source.shape[0], device=device)
        self._masks: dict[tuple[int | None, torch.dtype], list[Tensor]] = {}

    def serves(self, batch: Batch, num_heads: int, num_kv_heads: int, block_size: int) -> bool:
        """Whether the plan was made for this very batch and for such a layer."""
        return self._batch is batch and self._layout == (num_heads, num_kv_heads, block_size)

    def run(self, q: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None) -> Tensor:
        """[T, H, D] -> [T, H * D]; see ``Ops.attention``."""
        masks = self._masks.get((window, q.dtype))
        if masks is None:
            masks = self._masks[window, q.dtype] = [group.mask(window, q.dtype) for group in self._groups]
        head_dim = q.shape[2]
        q_heads = q.reshape(-1, head_dim)
        results = []
        for group, mask in zip(self._groups, masks, strict=True):
            shape = (group.rows, -1, self._num_kv_heads, head_dim)
            folded = q_heads.index_select(0, group.queries).view(shape).transpose(1, 2)
            k = keys.index_select(0, group.blocks).view(shape).transpose(1, 2)
            v = values.index_select(0, group.blocks).view(shape).transpose(1, 2)
            result = F.scaled_dot_product_attention(folded, k, v, attn_mask=mask, scale=scale)
            results.append(result.transpose(1, 2).reshape(-1, head_dim))
        joined = results[0] if len(results) == 1 else torch.cat(results)
        return joined.index_select(0, self._results).view(q.shape[0], -1)
