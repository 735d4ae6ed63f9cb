"""From the QKV projection to attention in one pass: (QK-norm,) rotation in place and cache write.

A program owns a few heads of one token. Query, key and value heads are contiguous in the projection's output and differ
only in norm weight, rotation and destination, so one tile may hold all three kinds.

Where the cache has another type, keys and values are rounded in place too: attention may read a chunk's own keys from
there, and they must equal the cache's.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from draftline.kernels.attention_spec import AttentionSpec
from draftline.kernels.batch import Batch, LayerCache
from draftline.kernels.triton.attention.kv_cache import head_scale, rounded
from draftline.kernels.triton.overlap import launch_options, wait_for_previous
from draftline.kernels.triton.sums import square, tree_sum


@triton.jit
def _rope_write_kv_kernel(
    qkv: tl.tensor,
    positions: tl.tensor,
    cache_index: tl.tensor,
    rope: tl.tensor,
    query_norm: tl.tensor,
    key_norm: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    key_scales: tl.tensor,
    value_scales: tl.tensor,
    qkv_stride: int,
    eps: float,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    FIRST_HEAD: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    QK_NORM: tl.constexpr,
    QUANTIZED: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    HEAD_DIM: tl.constexpr = 2 * HALF
    TOTAL: tl.constexpr = NUM_HEADS + 2 * NUM_KV_HEADS
    token = tl.program_id(0).to(tl.int64)
    head = (FIRST_HEAD + tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS))[:, None]
    col = tl.arange(0, BLOCK_HALF)[None, :]
    col_mask = col < HALF
    mask = (head < TOTAL) & col_mask
    is_query = head < NUM_HEADS
    is_value = head >= NUM_HEADS + NUM_KV_HEADS

    position = tl.load(positions + token)
    slot = tl.load(cache_index + token)
    cos = tl.load(rope + position * HEAD_DIM + col, mask=col_mask, other=0.0)
    sin = tl.load(rope + position * HEAD_DIM + HALF + col, mask=col_mask, other=0.0)
    wait_for_previous(OVERLAP)
    source = qkv + token * qkv_stride + head * HEAD_DIM + col
    first = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(source + HALF, mask=mask, other=0.0).to(tl.float32)

    if QK_NORM:
        # The sum is the whole head's tree, whatever its halves are.
        dim = tl.arange(0, 2 * BLOCK_HALF)[None, :]
        whole = tl.load(
            qkv + token * qkv_stride + head * HEAD_DIM + dim, mask=(head < TOTAL) & (dim < HEAD_DIM), other=0.0
        )
        inverse = tl.rsqrt(tree_sum(square(whole.to(tl.float32))) / HEAD_DIM + eps)[:, None]
        query_first = tl.load(query_norm + col, mask=col_mask, other=0.0).to(tl.float32)
        query_second = tl.load(query_norm + HALF + col, mask=col_mask, other=0.0).to(tl.float32)
        key_first = tl.load(key_norm + col, mask=col_mask, other=0.0).to(tl.float32)
        key_second = tl.load(key_norm + HALF + col, mask=col_mask, other=0.0).to(tl.float32)
        normed_first = first * inverse * tl.where(is_query, query_first, key_first)
        normed_second = second * inverse * tl.where(is_query, query_second, key_second)
        first = tl.where(is_value, first, normed_first)
        second = tl.where(is_value, second, normed_second)

    rotated_first = tl.where(is_value, first, tl.fma(second, -sin + tl.zeros_like(first), first * cos))
    rotated_second = tl.where(is_value, second, tl.fma(first, sin + tl.zeros_like(first), second * cos))

    kept_first = rotated_first
    kept_second = rotated_second
    stored = mask & (is_value == 0)
    if QUANTIZED:
        largest = tl.maximum(tl.max(tl.abs(rotated_first), axis=1), tl.max(tl.abs(rotated_second), axis=1))
        scale = head_scale(largest, keys)
        kept_first = rounded(rotated_first, scale[:, None], keys)
        kept_second = rounded(rotated_second, scale[:, None], keys)
        rotated_first = tl.where(is_query, rotated_first, kept_first.to(tl.float32) * scale[:, None])
        rotated_second = tl.where(is_query, rotated_second, kept_second.to(tl.float32) * scale[:, None])
        stored = mask
    tl.store(source, rotated_first.to(qkv.dtype.element_ty), mask=stored)
    tl.store(source + HALF, rotated_second.to(qkv.dtype.element_ty), mask=stored)

    # Padding tokens of a graph's batch have no entry in the cache: their index is negative.
    if slot >= 0:
        is_key = (head >= NUM_HEADS) & (head < NUM_HEADS + NUM_KV_HEADS)
        key_target = slot * NUM_KV_HEADS + (head - NUM_HEADS)
        key_out = keys + key_target * HEAD_DIM + col
        tl.store(key_out, kept_first.to(keys.dtype.element_ty), mask=mask & is_key)
        tl.store(key_out + HALF, kept_second.to(keys.dtype.element_ty), mask=mask & is_key)
        value_target = key_target - NUM_KV_HEADS
        value_out = values + value_target * HEAD_DIM + col
        tl.store(value_out, kept_first.to(values.dtype.element_ty), mask=mask & is_value)
        tl.store(value_out + HALF, kept_second.to(values.dtype.element_ty), mask=mask & is_value)
        if keys.dtype.element_ty == tl.int8:
            tl.store(key_scales + key_target, scale[:, None], mask=is_key)
            tl.store(value_scales + value_target, scale[:, None], mask=is_value & (head < TOTAL))


def rope_write_kv(
    qkv: Tensor,
    batch: Batch,
    cache: LayerCache,
    spec: AttentionSpec,
    *,
    first_head: int = 0,
    overlap: bool = False,
) -> Tensor:
    """``Ops.rope_write_kv`` by one kernel, which rotates ``qkv`` in place and writes no token with a negative cache index.

    Heads before ``first_head`` stay as they are: none, or all queries, which attention then rotates.
    """
    tokens = qkv.shape[0]
    num_kv_heads, head_dim = cache.keys.shape[2:]
    total = qkv.shape[1] // head_dim
    num_heads = total - 2 * num_kv_heads
    # An unused argument must still be a tensor.
    query_norm, key_norm = spec.norms if spec.norms is not None else (qkv, qkv)
    key_scales, value_scales = cache.scales if cache.scales is not None else (qkv, qkv)
    # Few tokens: small tiles, so that more programs share the work. Many: larger ones, so that fewer start.
    block_heads = 4 if tokens <= 64 else 16
    _rope_write_kv_kernel[(tokens, triton.cdiv(total - first_head, block_heads))](
        qkv,
        batch.positions,
        batch.cache_index,
        spec.rope,
        query_norm,
        key_norm,
        cache.keys,
        cache.values,
        key_scales,
        value_scales,
        qkv.stride(0),
        spec.eps,
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        FIRST_HEAD=first_head,
        HALF=head_dim // 2,
        BLOCK_HEADS=block_heads,
        BLOCK_HALF=triton.next_power_of_2(head_dim // 2),
        QK_NORM=spec.norms is not None,
        QUANTIZED=cache.keys.dtype != qkv.dtype,
        OVERLAP=overlap,
        num_warps=1 if block_heads == 4 else 4,
        **launch_options(overlap),
    )
    return qkv[:, : num_heads * head_dim].view(tokens, num_heads, head_dim)
