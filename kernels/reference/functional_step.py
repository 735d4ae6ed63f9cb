"""The data that one step's layers share, as functions of tensors in the part of Python that TorchScript compiles.

The attention's rows are grouped by shape on the host (`group_rows`); here a group becomes indices and masks.
"""

# No ``from __future__ import annotations`` here: TorchScript cannot read postponed annotations of a NamedTuple.

from typing import NamedTuple

import torch
from torch import Tensor

from draftline.kernels.reference.functional import Group


class RowGroup(NamedTuple):
    """B rows of a batch whose attention is computed together.

    Attributes:
        rows: [B], indices of the rows.
        first_tokens: [B], the index of each row's first query among the batch's tokens.
        context_lens: [B] their contexts.
        query_len: query tokens of each.
        queries: M, the padded number of query positions of each, see `make_group`.
        keys: S, the padded number of keys of each.
        first_index: the first cache entry of the only row, where its entries are contiguous; else -1.
    """

    rows: list[int]
    first_tokens: list[int]
    context_lens: list[int]
    query_len: int
    queries: int
    keys: int
    first_index: int


class HeadShape(NamedTuple):
    """The heads of a layer.

    Attributes:
        queries: H.
        queries_apart: the distance between two tokens' queries, in heads: H or more.
        keys: G.
        size: D.
    """

    queries: int
    queries_apart: int
    keys: int
    size: int


class Step(NamedTuple):
    """The data that the layers of one forward pass share.

    Attributes:
        cache_index: [T] int64, the cache entry of each token's key and value.
        cos: [T or more, 1, D], see `functional.rotate`.
        signed_sin: [T or more, 1, D].
        groups: the rows by shape.
        masks: for each window of some layer, each group's mask.
        results: see `result_index`.
    """

    cache_index: Tensor
    cos: Tensor
    signed_sin: Tensor
    groups: list[Group]
    masks: list[list[Tensor]]
    results: Tensor


def rotation(rope: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines of these positions, [T, 1, D] each, as `functional.rotate` takes them.

    ``rope`` is `AttentionSpec.rope`.
    """
    cos, sin = rope.index_select(0, positions).unbind(1)
    return torch.cat((cos, cos), dim=-1).unsqueeze(1), torch.cat((-sin, sin), dim=-1).unsqueeze(1)


def make_group(group: RowGroup, batch_tables: Tensor, block_size: int, heads: HeadShape, cache: Tensor) -> Group:
    """A group's indices.

    Args:
        group: the rows.
        batch_tables: the batch's block tables, [R, max_blocks] int32.
        block_size: tokens a cache block.
        heads: the layers' heads.
        cache: [entries, G, D] keys or values of any layer; only dtype and device matter.
    """
    device = batch_tables.device
    # The heads that share a key head are folded into the query axis, heads within tokens. The padding repeats the last
    # of them, so that every query has keys.
    group_size = heads.queries // heads.keys
    fold = torch.arange(group.queries, device=device).clamp_(max=group.query_len * group_size - 1)
    offset = fold.div(group_size, rounding_mode="floor")
    first_token = torch.tensor(group.first_tokens, device=device).unsqueeze(1)
    query = (first_token + offset) * heads.queries_apart + fold.sub(offset, alpha=group_size)
    first_head = torch.arange(0, heads.queries, group_size, device=device)
    contexts = torch.tensor(group.context_lens, device=device).unsqueeze(1)
    longest = max(group.context_lens)
    first = -1
    indices = torch.empty(0, dtype=torch.int64, device=device)
    if group.first_index >= 0:
        first = group.first_index * heads.keys * heads.size
    else:
        # All rows get as many entries as the longest. S keys of each are read: those beyond its entries are the next
        # row's, which the mask hides, and only the last row needs more. Block table entries past a row's last block are
        # undefined, so its last block replaces them.
        position = torch.arange(longest, device=device)
        column = torch.minimum(position, contexts - 1).div(block_size, rounding_mode="floor")
        blocks = batch_tables.index_select(0, torch.tensor(group.rows, device=device)).gather(1, column)
        indices = (blocks * block_size + position.remainder(block_size)).flatten()
        indices = torch.cat((indices, indices[-1:].expand(group.keys - longest)))
    rows = len(group.rows)
    room = [indices.shape[0], heads.keys, heads.size]
    return Group(
        queries=(query.unsqueeze(2) + first_head).flatten(),
        query_shape=[rows, group.queries, heads.keys, heads.size],
        positions=contexts - group.query_len + offset,
        indices=indices,
        key_shape=[rows, heads.keys, group.keys, heads.size],
        strides=[longest * heads.keys * heads.size, heads.size, heads.keys * heads.size, 1],
        first=first,
        gathered=[cache.new_empty(room), cache.new_empty(room)],
    )


def result_index(groups: list[Group], padded_tokens: int, heads: HeadShape) -> Tensor:
    """[padded_tokens * H], the index of each query head's result among all groups' results; of a repeated one, any."""
    sources = torch.cat([group.queries for group in groups])
    token = sources.div(heads.queries_apart, rounding_mode="floor")
    target = sources - token * (heads.queries_apart - heads.queries)
    results = torch.zeros(padded_tokens * heads.queries, dtype=torch.int64, device=sources.device)
    return results.index_copy_(0, target, torch.arange(sources.shape[0], device=sources.device))


def make_step(
    rope: Tensor,
    positions: Tensor,
    cache_index: Tensor,
    block_tables: Tensor,
    row_groups: list[RowGroup],
    block_size: int,
    heads: HeadShape,
    windows: list[int],
    dtype: torch.dtype,
    cache: Tensor,
) -> Step:
    """The data of one forward pass.

    Args:
        rope: see `AttentionSpec`.
        positions: [T or more], padded as the activations are.
        cache_index: [T] int64.
        block_tables: the batch's, [R, max_blocks] int32.
        row_groups: its rows by shape.
        block_size: tokens a cache block.
        heads: the layers' heads.
        windows: those of the layers; 0 is none.
        dtype: what the attention computes in.
        cache: [entries, G, D] keys or values of any layer; only dtype and device matter.
    """
    groups = [make_group(group, block_tables, block_size, heads, cache) for group in row_groups]
    masks: list[list[Tensor]] = []
    for window in windows:
        masks.append([mask(group, window, dtype) for group in groups])
    cos, signed_sin = rotation(rope, positions)
    return Step(cache_index, cos, signed_sin, groups, masks, result_index(groups, positions.shape[0], heads))


def mask(group: Group, window: int, dtype: torch.dtype) -> Tensor:
    """A group's additive mask [B, 1, M, S]: 0 for visible keys, else minus infinity. Window 0 is none."""
    position = group.positions.unsqueeze(1).unsqueeze(3)
    key = torch.arange(group.key_shape[2], device=position.device)
    hidden = key > position
    if window > 0:
        hidden = hidden.logical_or_(key <= position - window)
    return torch.zeros(hidden.shape, dtype=dtype, device=position.device).masked_fill_(hidden, float("-inf"))
