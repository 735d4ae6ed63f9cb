"""The reference operations as functions of tensors alone, in the part of Python that TorchScript compiles.

`ReferenceOps` is made of them, and so is the program that runs a whole decoder on a CPU (`draftline.models.scripted`).
`functional_step` computes their other arguments, which a step's layers share.
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
        query_shape: B, M, G, D.
        positions: [B, M] each folded query's position in its sequence.
        indices: the cache entries to gather; empty where there is a ``first``.
        key_shape: B, G, S, D.
        strides: of the keys in the gathered tensor or, where one row's keys are contiguous, in the cache itself.
        first: the first element of the only row's keys in the cache; -1 where they must be gathered.
        gathered: room for the keys and for the values, [len(indices), G, D] each, used by one layer after the other.
    """

    queries: Tensor
    query_shape: list[int]
    positions: Tensor
    indices: Tensor
    key_shape: list[int]
    strides: list[int]
    first: int
    gathered: list[Tensor]


def rms_norm(x: Tensor, scaled_weight: Tensor, floor: Tensor) -> Tensor:
    """RMSNorm in float32: ``x / sqrt(mean(x^2) + eps) * weight``, the root's argument times N.

    Each operation rounds exactly, so an element has the same bits in a vector and alone. With ``torch.hypot``, some do
    not.

    Args:
        x: [..., N].
        scaled_weight: float32, the weight times sqrt(N); broadcast against ``x``.
        floor: float32 scalar, N * eps.
    """
    norm: Tensor = torch.linalg.vector_norm(x, 2.0, [-1], True, dtype=torch.float32)
    return (x / norm.mul_(norm).add_(floor).sqrt_()).mul_(scaled_weight).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Rotary embedding of [T, heads, D] in float32: (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin).

    Args:
        x: the heads; their halves are rotated against each other.
        cos: [T, 1, D], the cosines twice over.
        signed_sin: [T, 1, D], the sines twice over, the first time negated.
    """
    wide = x.to(torch.float32)
    return torch.addcmul(wide * cos, wide.roll([x.shape[2] // 2], [-1]), signed_sin).to(x.dtype)


def write_cache(cache: Tensor, scales: Tensor | None, index: Tensor, rows: Tensor) -> None:
    """Write the first rows of [T or more, G, D] to entries ``index`` [T] of a cache [entries, G, D], in its type.

    An INT8 cache has ``scales`` [entries, G], by which each head's largest number is 127.
    """
    rows = rows.narrow(0, 0, index.shape[0])
    if scales is not None:
        scale = rows.abs().amax(dim=2).to(torch.float32) / 127.0
        scales.index_copy_(0, index, scale)
        divided = rows.to(torch.float32) / torch.where(scale > 0, scale, 1.0).unsqueeze(2)
        cache.index_copy_(0, index, divided.round_().clamp_(-127.0, 127.0).to(cache.dtype))
    elif cache.element_size() == 1:
        # Not index_copy_, which torch does not have for FP8.
        cache.index_put_([index], rows.clamp(-448.0, 448.0).to(cache.dtype))
    else:
        cache.index_copy_(0, index, rows.to(cache.dtype))


def read_cache(cache: Tensor, scales: Tensor | None, group: Group, room: Tensor, dtype: torch.dtype) -> Tensor:
    """The keys or values of a group's rows, [B, G, S, D]; a view of the cache where they are contiguous."""
    if group.first >= 0:
        heads = cache.as_strided(group.key_shape, group.strides, cache.storage_offset() + group.first)
    else:
        torch.index_select(cache, 0, group.indices, out=room)
        heads = room.as_strided(group.key_shape, group.strides)
    if scales is None:
        return heads.to(dtype)
    size = group.key_shape[3]
    strides = [group.strides[0] // size, group.strides[1] // size, group.strides[2] // size, 1]
    shape = [group.key_shape[0], group.key_shape[1], group.key_shape[2], 1]
    if group.first >= 0:
        scale = scales.as_strided(shape, strides, scales.storage_offset() + group.first // size)
    else:
        scale = scales.index_select(0, group.indices).as_strided(shape, strides)
    return (heads.to(torch.float32) * scale).to(dtype)


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """``cap * tanh(x / cap)`` in double precision: rounding hides how an element was computed. See `row_parts`."""
    return torch.tanh(x.to(torch.float64) / cap).mul_(cap).to(x.dtype)


def capped_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float, cap: float) -> Tensor:
    """``scaled_dot_product_attention`` with soft-capped scores.

    In double precision: the bits of matrix products depend on the number of rows, and rounding hides that.
    """
    scores = q.to(torch.float64).matmul(k.to(torch.float64).transpose(2, 3)).mul_(scale)
    weights = soft_cap(scores, cap).add_(mask).softmax(3)
    return weights.matmul(v.to(torch.float64)).to(q.dtype)


def attend_group(
    q_heads: Tensor,
    keys: Tensor,
    values: Tensor,
    key_scales: Tensor | None,
    value_scales: Tensor | None,
    group: Group,
    mask: Tensor,
    scale: float,
    cap: float,
) -> Tensor:
    """Attention of one group: [B * M * G, D]. See `attend`."""
    queries = q_heads.index_select(0, group.queries).view(group.query_shape).transpose(1, 2).to(mask.dtype)
    k = read_cache(keys, key_scales, group, group.gathered[0], mask.dtype)
    v = read_cache(values, value_scales, group, group.gathered[1], mask.dtype)
    if cap > 0.0:
        result = capped_attention(queries, k, v, mask, scale, cap)
    elif queries.shape[0] * queries.shape[1] == 1 and queries.shape[2] <= 32:
        # One key head of one row, and no more queries than torch takes at a time. For such a single piece of work it
        # leaves its threads to BLAS, which adds in another order with some numbers of them. So there are two pieces.
        two = [x.expand(2, -1, -1, -1) for x in (queries, k, v)]
        result = F.scaled_dot_product_attention(two[0], two[1], two[2], attn_mask=mask, scale=scale)[:1]
    else:
        result = F.scaled_dot_product_attention(queries, k, v, attn_mask=mask, scale=scale)
    return result.transpose(1, 2).reshape(-1, q_heads.shape[1]).to(q_heads.dtype)


def attend(
    q_heads: Tensor,
    keys: Tensor,
    values: Tensor,
    key_scales: Tensor | None,
    value_scales: Tensor | None,
    groups: list[Group],
    masks: list[Tensor],
    results: Tensor,
    scale: float,
    cap: float = 0.0,
) -> Tensor:
    """Attention of all groups.

    Args:
        q_heads: [number of query heads, D].
        keys: [entries, G, D], contiguous.
        values: the same for the values.
        key_scales: [entries, G], of INT8 keys; else None.
        value_scales: the same for the values.
        groups: the batch's rows by shape.
        masks: each group's additive mask, [B, 1, M, S], in the dtype to compute in.
        results: [T * H], the index of each query head's result among those of all groups.
        scale: multiplies the scores.
        cap: the soft cap of the scores; 0 is none.

    Returns:
        [T * H, D].
    """
    joined = attend_group(q_heads, keys, values, key_scales, value_scales, groups[0], masks[0], scale, cap)
    if len(groups) > 1:
        parts = [joined]
        index = 1
        while index < len(groups):  # TorchScript would unroll a ``for``, eight calls of it in each layer
            parts.append(
                attend_group(q_heads, keys, values, key_scales, value_scales, groups[index], masks[index], scale, cap)
            )
            index += 1
        joined = torch.cat(parts)
    return joined.index_select(0, results)


def row_parts(x: Tensor, most: int) -> list[Tensor]:
    """[T, N] whose rows are apart, as parts of some rows or a piece of one, for an elementwise operation.

    torch computes the elements of a run in vectors, and the last few one by one, which gives them other bits. On a CPU
    it takes adjacent rows as one run, and divides a run of more than ``most`` elements between threads. Each run of
    these parts ends with a row, or with the last vector of one.
    """
    parts: list[Tensor] = []
    for rows in x.split(max(1, most // x.shape[1])):
        parts += rows.split(most, 1)
    return parts


def join(parts: list[Tensor], x: Tensor) -> Tensor:
    """The results of ``row_parts(x)`` as one tensor."""
    return torch.cat([part.flatten() for part in parts]).view(x.shape)


def gelu(x: Tensor) -> Tensor:
    """GELU with tanh's approximation, of [T, N]."""
    most = 16384  # ``GELU_MIN_ELEMENTS_FOR_MULTI_THREADING``
    if x.is_contiguous() and x.shape[1] % 64 != 0:  # 64 elements are the most that torch computes at once
        x = F.pad(x, [0, 1]).narrow(1, 0, x.shape[1])
    if x.is_cuda or x.numel() <= most:
        return F.gelu(x, approximate="tanh")
    return join([F.gelu(part, approximate="tanh") for part in row_parts(x, most)], x)


def silu(x: Tensor) -> Tensor:
    """SiLU of [T, N] whose rows are apart."""
    most = 32768  # ``at::internal::GRAIN_SIZE``
    if x.is_cuda or x.numel() <= most:
        return F.silu(x)
    return join([F.silu(part) for part in row_parts(x, most)], x)


def silu_mul(gate_up: Tensor) -> Tensor:
    """SwiGLU's activation: [T, 2 N] -> [T, N]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return silu(gate).mul_(up)
