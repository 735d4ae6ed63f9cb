"""The plan of paged attention in plain torch: which rows go together, worked out once a step and not once a layer.

Rows with the same number of query tokens and the same padded context length are one group: one gather of queries, one of
cache blocks, and one ``scaled_dot_product_attention`` a layer (`functional.attend`).

On a CPU a query's result has the same bits in a decode, a verify, a prompt chunk of any size and any batch. torch's
kernel there takes keys 512 at a time and hands tiles of queries to BLAS, whose order of additions depends on the tile's
height, on the number of keys, and on where its buffers lie, which in turn depends on the height. With tiles that are a
multiple of a vector's worth high, and with certain numbers of keys, none of that shows: so both axes are padded to those.
They were found by trying (AVX2, MKL; every head size from 16 to 256); on a GPU torch promises nothing of the kind.

What is read beyond a sequence's own keys (the rest of its last block, a neighbour's) is hidden by the mask; it must be
finite, as the cache's zeros and all keys and values are.
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
            first = _first_place(batch, rows, num_keys, keys)
            places, distance = (batch.positions, 0) if first >= 0 else _places(batch, rows, num_keys, keys)
            self.groups.append(
                Group(
                    queries=self._tensor(queries.ravel()),
                    query_shape=[len(rows), len(fold), num_kv_heads, head_dim],
                    places=places,
                    key_shape=[len(rows), num_kv_heads, num_keys, head_dim],
                    strides=[distance * num_kv_heads * head_dim, head_dim, num_kv_heads * head_dim, 1],
                    first=first * num_kv_heads * head_dim,
                    gathered=[keys.new_empty(len(places) if first < 0 else 0, *keys.shape[2:]) for _ in range(2)],
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


def _first_place(batch: Batch, rows: list[int], num_keys: int, keys: Tensor) -> int:
    """The first of one row's places, if they lie in order, so that the cache need not be copied; else -1.

    Whatever follows them is read as well, and hidden by the mask.
    """
    num_blocks, block_size = keys.shape[:2]
    if len(rows) > 1 or keys.device.type != "cpu":
        return -1
    own: list[int] = batch.block_tables[rows[0], : -(-batch.context_lens_host[rows[0]] // block_size)].tolist()
    first = own[0] * block_size
    in_order = own == list(range(own[0], own[0] + len(own)))
    return first if in_order and first + num_keys <= num_blocks * block_size else -1


def _places(batch: Batch, rows: list[int], num_keys: int, keys: Tensor) -> tuple[Tensor, int]:
    """The places of these rows' keys, the longest row's number for each; and that number.

    ``num_keys`` are read of each row: those beyond its own are the next rows', hidden by the mask, and gathered only
    for the last. Table entries past a row's last block are undefined, so its last block stands for them.
    """
    block_size, device = keys.shape[1], batch.block_tables.device
    contexts = [batch.context_lens_host[row] for row in rows]
    longest = max(contexts)
    place = torch.arange(longest, device=device)
    last_block = torch.tensor([(context - 1) // block_size for context in contexts], device=device)
    column = torch.minimum(place // block_size, last_block[:, None])
    blocks = batch.block_tables[torch.tensor(rows, device=device)[:, None], column]
    places = (blocks * block_size + place % block_size).flatten()
    return torch.cat((places, places[-1:].expand(num_keys - longest))), longest


def _mask(positions: Tensor, keys: int, window: int | None, dtype: torch.dtype) -> Tensor:
    position = positions[:, None, :, None]
    key = torch.arange(keys, device=position.device)
    hidden = key > position
    if window is not None:
        hidden |= key <= position - window
    return torch.zeros(hidden.shape, dtype=dtype, device=position.device).masked_fill_(hidden, -math.inf)
