"""The reference operations as functions of tensors alone, in the part of Python that TorchScript compiles.

`ReferenceOps` is made of them, and so is the program that runs a whole decoder on a CPU (`draftline.models.scripted`).
What they need beyond the layer's own tensors, `reference_attention` and `reference` work out once a step.
"""

# No ``from __future__ import annotations`` here: TorchScript cannot read postponed annotations of a NamedTuple.

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Group(NamedTuple):
    """Rows of equal shape in a step's attention: B rows, M folded query positions, S keys.

    Attributes:
        queries: [B * M * G] indices of query heads.
        blocks: [B * ceil(S / block_size)] cache blocks; unused where ``first`` is one.
        first: the first block of the only row, where its blocks lie in order; else -1.
        rows: B.
        keys: S.
    """

    queries: Tensor
    blocks: Tensor
    first: int
    rows: int
    keys: int


class Step(NamedTuple):
    """What the layers of one forward share.

    Attributes:
        cache_index: [T] int64, where each token's key and value go.
        cos: [T or more, 1, D], see `rotate`.
        signed_sin: [T or more, 1, D].
        groups: the rows by shape.
        masks: for each kind of window that layers have, each group's additive mask [B, 1, M, S].
        results: [(T or more) * H] where each query head's result is, among those of all groups.
    """

    cache_index: Tensor
    cos: Tensor
    signed_sin: Tensor
    groups: list[Group]
    masks: list[list[Tensor]]
    results: Tensor


def rms_norm(x: Tensor, scaled_weight: Tensor, floor: Tensor) -> Tensor:
    """RMSNorm in float32: ``x / sqrt(mean(x^2) + eps) * weight``, both factors of the root's argument times N.

    Args:
        x: [..., N].
        scaled_weight: float32, the weight times sqrt(N); broadcast against ``x``.
        floor: float32 scalar, sqrt(N * eps).
    """
    norm = torch.linalg.vector_norm(x, 2.0, [-1], True, dtype=torch.float32)
    return (x / torch.hypot(norm, floor)).mul_(scaled_weight).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Rotary embedding of [T, heads, D] in float32: (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin).

    Args:
        x: the heads; their halves are rotated against each other.
        cos: [T, 1, D], the cosines twice over.
        signed_sin: [T, 1, D], the sines twice over, the first time negated.
    """
    wide = x.to(torch.float32)
    return torch.addcmul(wide * cos, wide.roll([x.shape[2] // 2], [-1]), signed_sin).to(x.dtype)


def write_paged(cache: Tensor, index: Tensor, rows: Tensor) -> None:
    """Write the first rows of [T or more, G, D] to places ``index`` [T] of a paged cache."""
    cache.view(-1, cache.shape[2], cache.shape[3]).index_copy_(0, index, rows[: index.shape[0]].to(cache.dtype))


def read_paged(cache: Tensor, group: Group, dtype: torch.dtype) -> Tensor:
    """The keys or values of a group's rows, [B, G, S, D]; a view of the cache where the blocks lie in order."""
    block_size, heads, size = cache.shape[1], cache.shape[2], cache.shape[3]
    shape = [group.rows, heads, group.keys, size]
    if group.first >= 0:
        place = cache.storage_offset() + group.first * block_size * heads * size
        return cache.as_strided(shape, [0, size, heads * size, 1], place).to(dtype)
    blocks = cache.index_select(0, group.blocks)
    return blocks.as_strided(shape, [blocks.numel() // group.rows, size, heads * size, 1]).to(dtype)


def attend(
    q_heads: Tensor,
    keys: Tensor,
    values: Tensor,
    groups: list[Group],
    masks: list[Tensor],
    results: Tensor,
    scale: float,
) -> Tensor:
    """Attention of all groups.

    Args:
        q_heads: [number of query heads, D].
        keys: [num_blocks, block_size, G, D].
        values: the same for the values.
        groups: the batch's rows by shape.
        masks: each group's additive mask, [B, 1, M, S].
        results: [T * H] where each query head's result is, among those of all groups.
        scale: what scores are multiplied with.

    Returns:
        [T * H, D].
    """
    parts: list[Tensor] = []
    for index, group in enumerate(groups):
        queries = q_heads.index_select(0, group.queries)
        result = F.scaled_dot_product_attention(
            queries.view(group.rows, -1, keys.shape[2], keys.shape[3]).transpose(1, 2),
            read_paged(keys, group, q_heads.dtype),
            read_paged(values, group, q_heads.dtype),
            attn_mask=masks[index],
            scale=scale,
        )
        parts.append(result.transpose(1, 2).reshape(-1, keys.shape[3]))
    joined = parts[0] if len(parts) == 1 else torch.cat(parts)
    return joined.index_select(0, results)


def silu_mul(gate_up: Tensor) -> Tensor:
    """SwiGLU's activation: [T, 2 N] -> [T, N]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
