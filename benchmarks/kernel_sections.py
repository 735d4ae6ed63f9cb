"""Time the Triton operations at the shapes of real models: checked first, several tile configurations in one run.

Every number is a CUDA graph's replay, over inputs that exceed the L2 cache where a real step's would, beside the share
of the device's measured copy bandwidth or matrix rate. Needs a GPU. The table comes last; variants are named by what
they change, ``default`` is what the engine uses.

`kernels.py` is the command.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from kernel_models import BLOCK_SIZE, DEVICE, DTYPE, EPS, LLAMA_8B, QWEN3, SMOLLM2, Model, make_batch, randn
from kernel_steps import DecodeStep, VendorOps, make_weights
from kernel_timing import Bench, Call, Ceilings, copies_beyond_cache, relative_error
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

from draftline.kernels.batch import Batch
from draftline.kernels.reference import ReferenceOps
from draftline.kernels.slots import Masks, SampleRows, SamplingFeatures, SlotTable
from draftline.kernels.triton import TritonOps, skinny_gemm
from draftline.kernels.triton.attention import run_launch
from draftline.kernels.triton.attention_plan import (
    AttentionShape,
    DecodePlan,
    Launch,
    Tile,
    plan_attention,
    plan_decode,
)
from draftline.kernels.triton.decode_attention import decode_attention
from draftline.kernels.triton.dense import overlaps
from draftline.kernels.triton.gemv import GemvConfig, gemv, gemv_config
from draftline.kernels.triton.skinny_gemm import SkinnyConfig, skinny_config, skinny_linear
from draftline.kernels.triton.tall_gemm import tall_linear


def ends(x: Tensor, batch: Batch) -> Tensor:
    """The tokens of the first and of the last row."""
    length = batch.query_lens_host[0]
    return x if len(batch.query_lens_host) == 1 else torch.cat([x[:length], x[-length:]])


def plain_attention(q: Tensor, keys: Tensor, values: Tensor, batch: Batch, scale: float) -> Tensor:
    """The reference in float32, of the first and the last row only: it is slow."""
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
    wide = (ends(q, batch).float(), keys.float(), values.float())
    return ReferenceOps().attention(*wide, few, scale=scale, window=None)


def attention_case(
    bench: Bench,
    ops: TritonOps,
    model: Model,
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
    caches = [randn(2, blocks, BLOCK_SIZE, model.kv_heads, model.head_dim) for _ in range(count)]
    for cache in caches:
        for values, written in zip(cache, new, strict=True):
            values.view(-1, model.kv_heads, model.head_dim)[batch.cache_index] = written
    scale = model.head_dim**-0.5
    expected = plain_attention(q, caches[0][0], caches[0][1], batch, scale)
    shape = AttentionShape(model.heads // model.kv_heads, model.kv_heads, model.head_dim, 2, ops.num_sms)
    (plan,) = plan_attention(shape, batch.query_lens_host, batch.context_lens_host, q.shape[0])
    out = torch.empty(q.shape[0], model.heads * model.head_dim, dtype=DTYPE, device=DEVICE)

    def runs(launch: Launch) -> list[Call]:
        return [
            partial(run_launch, launch, q, cache[0], cache[1], batch, out, scale=scale, window=None, own=qkv)
            for cache in caches
        ]

    def error(launch: Launch) -> float:
        out.fill_(float("nan"))
        runs(launch)[0]()
        return relative_error(ends(out, batch), expected)

    visible = sum(range(context - query_len + 1, context + 1))
    flops = 4.0 * rows * model.heads * model.head_dim * visible if query_len > 32 else 0.0
    moved = 2.0 * 2 * rows * context * model.kv_heads * model.head_dim + 4.0 * q.numel()
    case = f"{model.name} {rows}x{query_len} ctx {context}"

    def measure(variant: str, launch: Launch) -> None:
        bench.case(
            section, case, variant, runs(launch), num_bytes=moved, flops=flops, check=lambda: error(launch), bound=1e-2
        )

    measure(f"default s{plan.num_splits}", plan)
    for tile in tiles:
        tile = dataclasses.replace(tile, block_m=tile.block_m or plan.tile.block_m)
        queries = tile.block_m // shape.group
        tiles_per_row = -(-query_len // queries) if plan.tiles_per_row else 0
        total = rows * tiles_per_row if tiles_per_row else q.shape[0] // queries + rows
        name = f"m={tile.block_m} n={tile.block_n} w={tile.num_warps} s={tile.num_stages}"
        measure(name, dataclasses.replace(plan, tile=tile, tiles_per_row=tiles_per_row, num_tiles=total))
    for parts in splits:
        if parts != plan.num_splits:
            measure(f"splits={parts}", dataclasses.replace(plan, num_splits=parts))
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
    bench: Bench, ops: TritonOps, model: Model, rows: int, context: int, tiles: list[Tile], splits: list[int]
) -> None:
    """One decode batch, rotation and cache write included: the default plan, then each tile, then each split count."""
    batch = make_batch(rows, 1, context)
    blocks = batch.block_tables.numel()
    qkv = randn(rows, model.qkv)
    cache_bytes = 2 * 2 * blocks * BLOCK_SIZE * model.kv_heads * model.head_dim
    caches = [
        randn(2, blocks, BLOCK_SIZE, model.kv_heads, model.head_dim)
        for _ in range(copies_beyond_cache(cache_bytes, 32))
    ]
    rope = torch.randn(context, 2, model.head_dim // 2, device=DEVICE)
    norms = (randn(model.head_dim), randn(model.head_dim)) if model.qk_norm else None
    scale = model.head_dim**-0.5
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
    expected = ReferenceOps().rope_attention(
        qkv[:4].float(),
        few,
        rope,
        caches[0][0].float(),
        caches[0][1].float(),
        wide_norms,
        EPS,
        scale=scale,
        window=None,
    )
    shape = AttentionShape(model.heads // model.kv_heads, model.kv_heads, model.head_dim, 2, ops.num_sms)
    plan = plan_decode(shape, batch.query_lens_host, batch.context_lens_host)
    assert plan is not None
    arrivals = torch.zeros(rows * model.kv_heads, dtype=torch.int32, device=DEVICE)

    def run(plan: DecodePlan, cache: Tensor) -> Tensor:
        return decode_attention(
            qkv, batch, rope, cache[0], cache[1], norms, EPS,
            scale=scale, window=None, plan=plan, arrivals=arrivals, overlap=overlaps(qkv, ops.hopper),
        )  # fmt: skip

    def error(plan: DecodePlan) -> float:
        return relative_error(run(plan, caches[0])[:4], expected)

    plans = {f"default s{plan.num_splits}": plan}
    for tile in tiles:
        chosen = dataclasses.replace(tile, block_m=plan.tile.block_m)
        name = f"n={tile.block_n} w={tile.num_warps} s={tile.num_stages}"
        plans[name] = dataclasses.replace(plan, tile=chosen)
    plans |= {f"splits={parts}": dataclasses.replace(plan, num_splits=parts) for parts in splits}
    for variant, chosen_plan in plans.items():
        bench.case(
            "decode",
            f"{model.name} {rows}x1 ctx {context}",
            variant,
            [partial(run, chosen_plan, cache) for cache in caches],
            num_bytes=2.0 * 2 * rows * context * model.kv_heads * model.head_dim,
            check=partial(error, chosen_plan),
        )


def decode(bench: Bench, ops: TritonOps) -> None:
    """Attention of decodes, with rotation and cache write, and of verifies, without."""
    tiles = [Tile(0, n, w, s) for n, w, s in [(64, 4, 3), (64, 8, 3), (128, 4, 3), (64, 4, 5)]]
    decode_case(bench, ops, QWEN3, 1, 400, tiles, [4, 8, 16])
    decode_case(bench, ops, LLAMA_8B, 1, 16384, [], [16, 64])
    decode_case(bench, ops, QWEN3, 8, 256, tiles, [2, 8])
    decode_case(bench, ops, SMOLLM2, 64, 640, tiles, [2])
    decode_case(bench, ops, LLAMA_8B, 64, 640, tiles, [2])
    decode_case(bench, ops, QWEN3, 256, 640, tiles, [])
    attention_case(bench, ops, LLAMA_8B, "verify", (1, 5, 1024), [], [4, 8])
    attention_case(bench, ops, LLAMA_8B, "verify", (64, 5, 1024), [], [2])


def prefill(bench: Bench, ops: TritonOps) -> None:
    """Attention of prompt chunks."""
    tiles = [
        Tile(m, n, w, s)
        for m, n, w, s in [(64, 64, 4, 2), (64, 64, 4, 4), (64, 128, 4, 3), (128, 64, 8, 3), (128, 128, 8, 3), (128, 64, 4, 3)]
    ]  # fmt: skip
    attention_case(bench, ops, LLAMA_8B, "prefill", (4, 2048, 2048), tiles, [])
    attention_case(bench, ops, LLAMA_8B, "prefill", (1, 512, 2048), tiles[:1], [])
    attention_case(bench, ops, QWEN3, "prefill", (8, 2048, 2048), tiles, [])
    attention_case(bench, ops, SMOLLM2, "prefill", (8, 2048, 2048), tiles, [])


def elementwise_case(bench: Bench, ops: TritonOps, model: Model, tokens: int) -> None:
    """One model and number of tokens."""
    count = copies_beyond_cache(tokens * model.intermediate * 6, 16) if tokens > 64 else 16
    batch = make_batch(tokens, 1, 64)
    caches = randn(2, tokens * 4, BLOCK_SIZE, model.kv_heads, model.head_dim)
    rope = torch.randn(64, 2, model.head_dim // 2, device=DEVICE)
    scale = randn(model.hidden)
    norms = (randn(model.head_dim), randn(model.head_dim)) if model.qk_norm else None
    hidden = [randn(tokens, model.hidden) for _ in range(count)]
    qkv = [randn(tokens, model.qkv) for _ in range(count)]
    gate_up = [randn(tokens, 2 * model.intermediate) for _ in range(count)]
    case = f"{model.name} T={tokens}"
    bench.case(
        "norm",
        case,
        "default",
        [partial(ops.rms_norm, x, scale, EPS) for x in hidden],
        num_bytes=4.0 * tokens * model.hidden,
        check=lambda: relative_error(
            ops.rms_norm(hidden[0], scale, EPS), ReferenceOps().rms_norm(hidden[0].float(), scale.float(), EPS)
        ),
    )
    bench.case(
        "rope",
        case,
        "default",
        [partial(ops.rope_write_kv, x, batch, rope, caches[0], caches[1], norms, EPS) for x in qkv],
        num_bytes=4.0 * tokens * model.qkv,
        check=lambda: relative_error(
            ops.rope_write_kv(qkv[0].clone(), batch, rope, caches[0], caches[1], norms, EPS),
            ReferenceOps().rope_write_kv(qkv[0], batch, rope, caches[0].clone(), caches[1].clone(), norms, EPS),
        ),
    )
    bench.case(
        "silu_mul",
        case,
        "default",
        [partial(ops.silu_mul, x) for x in gate_up],
        num_bytes=6.0 * tokens * model.intermediate,
        check=lambda: relative_error(ops.silu_mul(gate_up[0]), ReferenceOps().silu_mul(gate_up[0].float().clone())),
    )


def elementwise(bench: Bench, ops: TritonOps) -> None:
    """Norms, rotation with cache write, activation."""
    for model in (LLAMA_8B, QWEN3):
        for tokens in (1, 64, 2048):
            elementwise_case(bench, ops, model, tokens)


def sampling_case(bench: Bench, ops: TritonOps, rows: int) -> None:
    """One number of rows."""
    feature = SamplingFeatures
    noise = feature.TEMPERATURE
    sets = {
        "greedy": feature.NONE,
        "T": noise,
        "T top-p": noise | feature.TOP_P,
        "T top-k top-p": noise | feature.TOP_K | feature.TOP_P,
        "all, masked": ~feature.NONE,
    }
    vocab = QWEN3.vocab
    logits = [randn(rows, vocab, scale=3.0) for _ in range(copies_beyond_cache(2 * rows * vocab, 8))]
    slots = SlotTable.allocate(rows, 2048, 8, DEVICE)
    slots.tokens.random_(0, vocab)
    slots.seed.random_()
    slots.temperature.fill_(0.7)
    slots.top_p.fill_(0.9)
    slots.top_k.fill_(20)
    slots.repetition_penalty.fill_(1.1)
    index = torch.arange(rows, device=DEVICE)
    positions = torch.full((rows,), 1000, device=DEVICE)
    words = torch.full((rows + 1, vocab // 32), -1, dtype=torch.int32, device=DEVICE)
    masks = Masks(words, torch.arange(1, rows + 1, dtype=torch.int32, device=DEVICE))
    for name, features in sets.items():
        step = SampleRows(index, positions, features, masks if "masked" in name else None)

        def wrong(step: SampleRows) -> float:
            few = dataclasses.replace(
                step,
                slots=step.slots[:8],
                positions=step.positions[:8],
                masks=None if step.masks is None else Masks(words, step.masks.rows[:8]),
            )
            chosen = ops.sample(logits[0][:8], few, slots)
            return float((chosen != ReferenceOps().sample(logits[0][:8], few, slots)).sum())

        bench.case(
            "sample",
            f"{rows} rows x {vocab}",
            name,
            [partial(ops.sample, x, step, slots) for x in logits],
            num_bytes=2.0 * rows * vocab,
            check=partial(wrong, step),
            bound=1.5,
        )
    case = f"{rows} rows x {vocab}"
    bench.case(
        "sample", case, "torch argmax", [partial(torch.argmax, x, -1) for x in logits], num_bytes=2.0 * rows * vocab
    )
    bench.case(
        "logprobs",
        case,
        "top 5",
        [partial(ops.logprobs, x, index, 5) for x in logits],
        num_bytes=2.0 * rows * vocab,
    )


def sampling(bench: Bench, ops: TritonOps) -> None:
    """Sampling and log-probabilities of one step."""
    for rows in (1, 64, 256):
        sampling_case(bench, ops, rows)


GEMV_CONFIGS = [
    GemvConfig(n, k, w)
    for n, k, w in [(1, 1024, 1), (2, 1024, 2), (2, 1024, 4), (4, 1024, 4), (1, 2048, 2), (2, 2048, 4), (4, 512, 2)]
]
SKINNY_CONFIGS = [
    SkinnyConfig(n, k, w, s)
    for n, k, w, s in [(16, 512, 4, 4), (8, 512, 4, 4), (16, 256, 4, 5), (32, 256, 4, 4), (16, 256, 2, 5), (16, 512, 8, 4)]
]  # fmt: skip


def linear_case(
    bench: Bench, model: Model, rows: int, name: str, shape: tuple[int, int], with_variants: bool
) -> dict[str, float]:
    """One weight: microseconds by implementation, ``best`` of all configurations."""
    n, k = shape
    weights = [randn(n, k, scale=k**-0.5) for _ in range(copies_beyond_cache(2 * n * k, 40))]
    x = randn(rows, k)
    expected = linear(x.float(), weights[0].float())

    def measure(variant: str, function: Callable[[Tensor], Tensor]) -> float:
        took = bench.case(
            "linear",
            f"{model.name} {name} M={rows}",
            variant,
            [partial(function, weight) for weight in weights],
            num_bytes=2.0 * n * k,
            check=lambda: relative_error(function(weights[0]), expected),
        )
        return took if took is not None else float("inf")

    def one_row(config: GemvConfig, overlap: bool) -> Callable[[Tensor], Tensor]:
        return lambda weight: gemv(x, weight, None, config=config, overlap=overlap)

    def few_rows(config: SkinnyConfig, overlap: bool) -> Callable[[Tensor], Tensor]:
        return lambda weight: skinny_linear(x, weight, config=config, overlap=overlap)

    times = {"cublas": measure("cublas", lambda weight: linear(x, weight))}
    runs: dict[str, Callable[[Tensor], Tensor]] = {}
    if rows > skinny_gemm.MAX_ROWS:
        times["tall"] = measure("tall", lambda weight: tall_linear(x, weight, None))
        return {**times, "best": min(times.values())}
    if rows == 1:
        runs = {str(config): one_row(config, False) for config in GEMV_CONFIGS}
        default, overlapped = (one_row(gemv_config(n, k), overlap) for overlap in (False, True))
    else:
        runs = {str(config): few_rows(config, False) for config in SKINNY_CONFIGS if config.block_k <= k}
        default, overlapped = (few_rows(skinny_config(n, k), overlap) for overlap in (False, True))
    times["default"] = measure("default", default)
    times["overlapped"] = measure("overlapped", overlapped)
    best = min(times["default"], times["overlapped"])
    if with_variants:
        best = min([best, *(measure(label, function) for label, function in runs.items())])
    return {**times, "best": best}


def linears(bench: Bench, _: TritonOps) -> None:
    """Linears of a decode step, weights read once: one line a weight, and the sum over the step."""
    for model, rows, with_variants in [
        (LLAMA_8B, 1, True),
        (QWEN3, 1, True),
        (SMOLLM2, 1, False),
        (LLAMA_8B, 5, True),
        (QWEN3, 5, True),
        (SMOLLM2, 5, False),
        (LLAMA_8B, 8, False),
        (LLAMA_8B, 16, False),
        (LLAMA_8B, 64, False),
        (QWEN3, 64, False),
    ]:
        sums: dict[str, float] = {}
        floor = 0.0
        for name, shape in {**model.linears, "head": (model.vocab, model.hidden)}.items():
            uses = 1 if name == "head" else model.layers
            floor += 2.0 * shape[0] * shape[1] * uses
            for label, took in linear_case(bench, model, rows, name, shape, with_variants and name != "head").items():
                sums[label] = sums.get(label, 0.0) + uses * took
        for label, took in sums.items():
            bench.case_known("linears", f"{model.name} M={rows}, whole step", label, took, num_bytes=floor)


def step_error(step: DecodeStep, ops: TritonOps, expected: Tensor) -> float:
    """How far a step's logits are from these."""
    return relative_error(step.run(ops), expected)


def steps(bench: Bench, ops: TritonOps) -> None:
    """Whole decode steps in one graph, greedy: as the engine runs them, without overlap, and with nothing fused."""
    variants = {
        "vendor, nothing fused": VendorOps(ops.num_sms, False, ops.arrivals),
        "default, no overlap": dataclasses.replace(ops, hopper=False),
        "default": ops,
    }
    for model, sizes in [
        (QWEN3, [(1, 1, 400), (1, 5, 400), (8, 1, 256), (64, 1, 640), (256, 1, 640)]),
        (SMOLLM2, [(1, 1, 400), (8, 1, 256), (64, 1, 640), (256, 1, 640)]),
        (LLAMA_8B, [(1, 1, 400), (1, 5, 400), (8, 1, 256), (64, 1, 640)]),
    ]:
        if time.monotonic() > bench.deadline:
            bench.left_out.append(f"steps of {model.name}")
            continue
        weights = make_weights(model)
        for rows, query_len, context in sizes:
            step = DecodeStep(model, weights, rows, query_len, context)
            expected = step.run(variants["vendor, nothing fused"])
            for variant, chosen in variants.items():
                # Rounding grows from layer to layer: the bound only tells a wrong step from a right one.
                bench.case(
                    "step",
                    f"{model.name} {rows}x{query_len} ctx {context}",
                    variant,
                    [partial(step.run, chosen)],
                    num_bytes=step.num_bytes,
                    check=partial(step_error, step, chosen, expected),
                    bound=0.06,
                )
            del step, expected
            torch.cuda.empty_cache()
        del weights
        torch.cuda.empty_cache()


SECTIONS: dict[str, Callable[[Bench, TritonOps], None]] = {
    "decode": decode,
    "elementwise": elementwise,
    "sampling": sampling,
    "steps": steps,
    "prefill": prefill,
    "linears": linears,
}


def main() -> None:
    """Run the sections within the time, print the table, save the results."""
    parser = argparse.ArgumentParser(description="Time the Triton operations at the shapes of real models.")
    parser.add_argument("--sections", default=",".join(SECTIONS), help=f"of {', '.join(SECTIONS)}")
    parser.add_argument("--seconds", type=float, default=220.0, help="begin no case after this time")
    parser.add_argument("--out", type=Path, help="where to save all results as JSON")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/kernels.py needs a GPU, and torch finds none here")
    torch.manual_seed(0)
    deadline = time.monotonic() + options.seconds
    ops = TritonOps.for_device(DEVICE)
    bench = Bench(Ceilings.measure(), deadline)
    for name in options.sections.split(","):
        SECTIONS[name](bench, ops)
        torch.cuda.empty_cache()
    if options.out is not None:
        bench.save(options.out)
    print("\n" + bench.report())
