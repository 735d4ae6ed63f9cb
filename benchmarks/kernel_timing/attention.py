"""The attention sections of sections.py: decode steps, verify steps and prompt chunks, checked and timed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from draftline.kernels.attention_spec import AttentionSpec
from draftline.kernels.batch import Batch, LayerCache
from draftline.kernels.reference.ops import ReferenceOps
from draftline.kernels.triton.attention.chunks import attend_chunks
from draftline.kernels.triton.attention.decode import attend_short, decode_attention
from draftline.kernels.triton.attention.decode_plan import DecodePlan, plan_decode, plan_short
from draftline.kernels.triton.attention.plan import AttentionShape, ChunkPlan, Tile, plan_chunks
from draftline.kernels.triton.ops import TritonOps
from draftline.kernels.triton.overlap import overlaps
from kernel_timing.models import BLOCK_SIZE, DEVICE, DTYPE, EPS, LLAMA_8B, QWEN3, SMOLLM2, ModelSizes, make_batch, randn
from kernel_timing.timing import Bench, Call, copies_beyond_cache, relative_error

Run = Callable[[Tensor, LayerCache], Tensor]
"""Rotates queries and keys [T, (H + 2 G) * D] in place, writes the cache, and attends."""


def ends(x: Tensor, batch: Batch) -> Tensor:
    """The tokens of the first and of the last row."""
    length = batch.query_lens_host[0]
    return x if len(batch.query_lens_host) == 1 else torch.cat([x[:length], x[-length:]])


def plain_attention(q: Tensor, batch: Batch, cache: LayerCache, spec: AttentionSpec) -> Tensor:
    """The float32 reference, for the first and the last row only, since it is slow."""
    chosen = torch.tensor([0, len(batch.query_lens_host) - 1], device=DEVICE).unique()
    count, length = chosen.numel(), batch.query_lens_host[0]
    few = dataclasses.replace(
        batch,
        token_ids=ends(batch.token_ids, batch),
        positions=ends(batch.positions, batch),
        cache_index=ends(batch.cache_index, batch),
        query_starts=torch.arange(0, count * length + 1, length, dtype=torch.int32, device=DEVICE),
        context_lens=batch.context_lens[chosen],
        block_tables=batch.block_tables[chosen],
        query_lens_host=batch.query_lens_host[:count],
        context_lens_host=batch.context_lens_host[:count],
    )
    wide = LayerCache(cache.keys.float(), cache.values.float())
    return ReferenceOps().attention(ends(q, batch).float(), few, wide, spec)


def make_cache(model: ModelSizes, blocks: int) -> LayerCache:
    """Random keys and values."""
    shape = (blocks, BLOCK_SIZE, model.kv_heads, model.head_dim)
    return LayerCache(randn(*shape), randn(*shape))


def attention_case(
    bench: Bench,
    ops: TritonOps,
    model: ModelSizes,
    section: str,
    sizes: tuple[int, int, int],
    tiles: list[Tile],
    splits: list[int],
) -> None:
    """One batch: the default plan, then each tile, then each split count."""
    rows, query_len, context = sizes
    batch = make_batch(rows, query_len, context)
    blocks = batch.block_tables.numel()
    qkv = randn(rows * query_len, model.qkv)
    q, *new = qkv.view(-1, model.heads + 2 * model.kv_heads, model.head_dim).split(
        [model.heads, model.kv_heads, model.kv_heads], dim=1
    )
    cache_bytes = 2 * 2 * blocks * BLOCK_SIZE * model.kv_heads * model.head_dim
    count = copies_beyond_cache(cache_bytes, 32)
    caches = [make_cache(model, blocks) for _ in range(count)]
    for cache in caches:
        for stored, written in zip((cache.keys, cache.values), new, strict=True):
            stored.view(-1, model.kv_heads, model.head_dim)[batch.cache_index] = written
    # By no angle: these kernels rotate their queries, and the reference does not.
    rope = torch.zeros(context, 2, model.head_dim // 2, device=DEVICE)
    rope[:, 0] = 1
    spec = AttentionSpec(rope, model.head_dim**-0.5)
    expected = plain_attention(q, batch, caches[0], spec)
    shape = AttentionShape(model.heads // model.kv_heads, model.kv_heads, model.head_dim, ops.limits)
    out = torch.empty(q.shape[0], model.heads * model.head_dim, dtype=DTYPE, device=DEVICE)
    chunks = plan_chunks(shape, batch.query_lens_host, q.shape[0], 0)
    short = plan_short(shape, batch.query_lens_host, batch.context_lens_host)

    def runs(chunks: ChunkPlan | None, short: DecodePlan | None) -> list[Call]:
        if chunks is not None:
            return [partial(attend_chunks, q, batch, cache, spec, out, plan=chunks, own=qkv) for cache in caches]
        assert short is not None
        return [partial(attend_short, q, batch, cache, spec, out, plan=short, rotate=True) for cache in caches]

    def error(calls: list[Call]) -> float:
        out.fill_(float("nan"))
        calls[0]()
        return relative_error(ends(out, batch), expected)

    visible = sum(range(context - query_len + 1, context + 1))
    flops = 4.0 * rows * model.heads * model.head_dim * visible if query_len > 32 else 0.0
    moved = 2.0 * 2 * rows * context * model.kv_heads * model.head_dim + 4.0 * q.numel()
    case = f"{model.name} {rows}x{query_len} ctx {context}"

    def measure(variant: str, chunks: ChunkPlan | None, short: DecodePlan | None) -> None:
        calls = runs(chunks, short)
        bench.case(section, case, variant, calls, num_bytes=moved, flops=flops, check=lambda: error(calls), bound=1e-2)

    measure("default", chunks, short)
    for tile in tiles if chunks is not None else ():
        tile = dataclasses.replace(tile, block_n=shape.key_tile)
        num_tiles = q.shape[0] // (tile.block_m // shape.group) + rows
        measure(f"m={tile.block_m} w={tile.num_warps} s={tile.num_stages}", ChunkPlan(tile, 1, num_tiles), None)
    if short is not None:
        for parts in splits:
            measure(f"splits={parts}", None, dataclasses.replace(short, num_splits=parts))
    if query_len == context:
        dense = randn(3, rows, model.heads, context, model.head_dim)
        bench.case(
            section,
            case,
            "torch sdpa",
            [lambda: scaled_dot_product_attention(dense[0], dense[1], dense[2], is_causal=True)],
            num_bytes=moved,
            flops=flops,
        )


def decode_case(
    bench: Bench, ops: TritonOps, model: ModelSizes, rows: int, context: int, tiles: list[Tile], splits: list[int]
) -> None:
    """One decode batch, rotation and cache write included: the default plan, then each tile, then each split count."""
    batch = make_batch(rows, 1, context)
    blocks = batch.block_tables.numel()
    qkv = randn(rows, model.qkv)
    cache_bytes = 2 * 2 * blocks * BLOCK_SIZE * model.kv_heads * model.head_dim
    caches = [make_cache(model, blocks) for _ in range(copies_beyond_cache(cache_bytes, 32))]
    # Rotations proper: the kernels rotate in place, again and again.
    angle = torch.randn(context, model.head_dim // 2, device=DEVICE)
    rope = torch.stack([angle.cos(), angle.sin()], dim=1)
    norms = (randn(model.head_dim), randn(model.head_dim)) if model.qk_norm else None
    spec = AttentionSpec(rope, model.head_dim**-0.5, norms=norms, eps=EPS)
    few = dataclasses.replace(
        batch,
        positions=batch.positions[:4],
        cache_index=batch.cache_index[:4],
        query_starts=batch.query_starts[:5],
        context_lens=batch.context_lens[:4],
        block_tables=batch.block_tables[:4],
        query_lens_host=batch.query_lens_host[:4],
        context_lens_host=batch.context_lens_host[:4],
    )
    wide_norms = (norms[0].float(), norms[1].float()) if norms is not None else None
    wide = LayerCache(caches[0].keys.float(), caches[0].values.float())
    wide_spec = dataclasses.replace(spec, norms=wide_norms)
    expected = ReferenceOps().rope_attention(qkv[:4].float(), few, wide, wide_spec)
    shape = AttentionShape(model.heads // model.kv_heads, model.kv_heads, model.head_dim, ops.limits)
    before = qkv.clone()
    variants: dict[str, Run] = {"default": lambda x, cache: ops.rope_attention(x, batch, cache, spec)}

    def planned(plan: DecodePlan) -> Run:
        overlap = overlaps(qkv, ops.limits)
        return lambda x, cache: decode_attention(x, batch, cache, spec, plan=plan, overlap=overlap)

    plan = plan_decode(shape, batch.query_lens_host, batch.context_lens_host)
    if plan is not None:
        for tile in tiles:
            chosen = dataclasses.replace(tile, block_m=plan.tile.block_m, block_n=plan.tile.block_n)
            name = f"w={tile.num_warps} s={tile.num_stages}"
            variants[name] = planned(dataclasses.replace(plan, tile=chosen))
        for parts in splits:
            variants[f"splits={parts}"] = planned(dataclasses.replace(plan, num_splits=parts))

    def error(run: Run) -> float:
        return relative_error(run(before.clone(), caches[0])[:4], expected)

    for variant, run in variants.items():
        bench.case(
            "decode",
            f"{model.name} {rows}x1 ctx {context}",
            variant,
            [partial(run, qkv, cache) for cache in caches],
            num_bytes=2.0 * 2 * rows * context * model.kv_heads * model.head_dim,
            check=partial(error, run),
        )


def decode(bench: Bench, ops: TritonOps) -> None:
    """Attention of decode steps, with rotary embeddings and cache writes, and of verify steps, without."""
    tiles = [Tile(0, 0, w, s) for w, s in [(4, 3), (8, 2), (8, 3), (4, 4)]]
    decode_case(bench, ops, QWEN3, 1, 400, tiles, [4, 8, 16])
    decode_case(bench, ops, LLAMA_8B, 1, 16384, [], [16, 64])
    decode_case(bench, ops, QWEN3, 8, 256, tiles, [2, 8])
    decode_case(bench, ops, SMOLLM2, 64, 640, [], [])
    decode_case(bench, ops, LLAMA_8B, 64, 640, [], [])
    decode_case(bench, ops, QWEN3, 256, 640, [], [])
    attention_case(bench, ops, LLAMA_8B, "verify", (1, 5, 1024), [], [4, 8])
    attention_case(bench, ops, LLAMA_8B, "verify", (64, 5, 1024), [], [2])


def prefill(bench: Bench, ops: TritonOps) -> None:
    """Attention of prompt chunks."""
    tiles = [
        Tile(m, 0, w, s) for m, w, s in [(64, 4, 2), (64, 4, 3), (64, 4, 4), (128, 8, 2), (128, 8, 3), (128, 4, 3)]
    ]  # fmt: skip
    attention_case(bench, ops, LLAMA_8B, "prefill", (4, 2048, 2048), tiles, [])
    attention_case(bench, ops, LLAMA_8B, "prefill", (1, 512, 2048), tiles[:1], [])
    attention_case(bench, ops, QWEN3, "prefill", (8, 2048, 2048), tiles, [])
    attention_case(bench, ops, SMOLLM2, "prefill", (8, 2048, 2048), tiles, [])
