"""The plan of paged attention in plain torch: which rows go together, worked out once a step and not once a layer.

Rows with the same number of query tokens and the same padded context length are one group: one gather of queries, one of
cache blocks, and one ``scaled_dot_product_attention`` a layer (`functional.attend`).

On a CPU a query's result has the same bits in a decode, a verify, a prompt chunk of any size and any batch. torch's
kernel there takes keys 512 at a time and hands tiles of queries to BLAS, whose order of additions depends on the tile's
height, on the number of keys, and on where its buffers lie, which in turn depends on the height. With tiles that are a
multiple of a vector's worth high, and with certain numbers of keys, none of that shows: so both axes are padded to those.
They were found by trying (AVX2, MKL; every head size from 16 to 256); on a GPU torch promises nothing of the kind.

What a block holds past its sequence's end is hidden by the mask; it must be finite, as the cache's zeros and all keys and
values are.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from draftline.kernels.batch import Batch
from draftline.kernels.functional import Group

IntArray = npt.NDArray[np.int64]

_QUERY_MULTIPLE = 8 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 4
_KEY_BLOCK = 512
_KEYS_IN_LAST_BLOCK = (64, 128, 192, 384, 512)


class AttentionPlan:
    """How the attention of one batch is computed.

    Args:
        batch: the batch.
        padded_tokens: T or more, as many as the activations have rows.
        num_heads: H.
        heads_per_token: the distance between two tokens' queries, in heads: H or more.
        keys: [num_blocks, block_size, G, D] keys of one layer; only the shape matters.

    Attributes:
        groups: the rows by shape.
        results: [padded_tokens * H], see `functional.attend`.
    """

    def __init__(self, batch: Batch, padded_tokens: int, num_heads: int, heads_per_token: int, keys: Tensor) -> None:
        self._made_for = (batch, padded_tokens, num_heads, heads_per_token, keys.shape)
        self._device = batch.token_ids.device
        num_kv_heads, head_dim = keys.shape[2:]
        group_size = num_heads // num_kv_heads
        first_head = np.arange(num_kv_heads) * group_size
        first_token = np.cumsum((0, *batch.query_lens_host))
        first_position = np.subtract(batch.context_lens_host, batch.query_lens_host)
        shapes: dict[tuple[int, int], list[int]] = {}
        for row, (query_len, context_len) in enumerate(
            zip(batch.query_lens_host, batch.context_lens_host, strict=True)
        ):
            shapes.setdefault((query_len, _padded_keys(context_len)), []).append(row)
        self.groups: list[Group] = []
        self._positions: list[Tensor] = []
        # Where each query head's result is among all groups' results; of a repeated one, any.
        results = np.zeros((padded_tokens, num_heads), dtype=np.int64)
        done = 0
        for (query_len, num_keys), rows in shapes.items():
            # The heads that share a key head are folded into the query axis, heads within tokens; the padding repeats
            # the last of them, so that no query is without keys.
            folded = query_len * group_size
            fold = np.minimum(np.arange(-(-folded // _QUERY_MULTIPLE) * _QUERY_MULTIPLE), folded - 1)
            offset = fold // group_size
            token = first_token[rows][:, None] + offset
            head = (fold % group_size)[:, None] + first_head
            queries = (token * heads_per_token)[:, :, None] + head
            results[token[:, :, None], head] = np.arange(done, done + queries.size).reshape(queries.shape)
            done += queries.size
            places, first = _places(batch, rows, num_keys, keys)
            self.groups.append(
                Group(
                    queries=self._tensor(queries.ravel()),
                    query_shape=[len(rows), len(fold), num_kv_heads, head_dim],
                    places=places,
                    key_shape=[len(rows), num_kv_heads, num_keys, head_dim],
                    strides=[num_keys * num_kv_heads * head_dim, head_dim, num_kv_heads * head_dim, 1],
                    first=first * num_kv_heads * head_dim,
                )
            )
            self._positions.append(self._tensor(first_position[rows][:, None] + offset))
        self.results = self._tensor(results.ravel())
        self._masks: dict[tuple[int | None, torch.dtype], list[Tensor]] = {}

    def _tensor(self, array: IntArray) -> Tensor:
        return torch.from_numpy(array).to(self._device)

    def serves(self, batch: Batch, padded_tokens: int, num_heads: int, heads_per_token: int, keys: Tensor) -> bool:
        """Whether the plan was made with such arguments, of this very batch."""
        return self._made_for[0] is batch and self._made_for[1:] == (
            padded_tokens,
            num_heads,
            heads_per_token,
            keys.shape,
        )

    def masks(self, window: int | None, dtype: torch.dtype) -> list[Tensor]:
        """Each group's additive mask [B, 1, M, S]: 0 where a query may look, minus infinity elsewhere."""
        masks = self._masks.get((window, dtype))
        if masks is None:
            masks = self._masks[window, dtype] = [
                _mask(position, group.key_shape[2], window, dtype)
                for position, group in zip(self._positions, self.groups, strict=True)
            ]
        return masks


def _padded_keys(context_len: int) -> int:
    """The number of keys that a row with this context is computed with."""
    whole, rest = divmod(context_len - 1, _KEY_BLOCK)
    return whole * _KEY_BLOCK + next(size for size in _KEYS_IN_LAST_BLOCK if size > rest)


def _places(batch: Batch, rows: list[int], num_keys: int, keys: Tensor) -> tuple[Tensor, int]:
    """Where the first ``num_keys`` keys of each of these rows are, flattened; or the first of them, see `Group`.

    Places past a row's last block are undefined. The mask hides them, but they must exist: its last block again, or, for
    one row whose blocks lie in order, whatever follows them, so that the cache need not be copied.
    """
    num_blocks, block_size = keys.shape[:2]
    last = [(batch.context_lens_host[row] - 1) // block_size for row in rows]
    if len(rows) == 1 and keys.device.type == "cpu":
        own = batch.block_tables[rows[0], : last[0] + 1].tolist()
        first = own[0] * block_size
        if first + num_keys <= num_blocks * block_size and own == list(range(own[0], own[0] + len(own))):
            return batch.cache_index, first
    device = batch.block_tables.device
    place = torch.arange(num_keys, device=device)
    column = torch.minimum(place // block_size, torch.tensor(last, device=device)[:, None])
    blocks = batch.block_tables[torch.tensor(rows, device=device)[:, None], column]
    return (blocks * block_size + place % block_size).flatten(), -1


def _mask(positions: Tensor, keys: int, window: int | None, dtype: torch.dtype) -> Tensor:
    position = positions[:, None, :, None]
    key = torch.arange(keys, device=position.device)
    hidden = key > position
    if window is not None:
        hidden |= key <= position - window
    return torch.zeros(hidden.shape, dtype=dtype, device=position.device).masked_fill_(hidden, -math.inf)
