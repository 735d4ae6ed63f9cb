"""Time Triton operations at the shapes of real models, in several tile configurations, after a check of the results.

Every time is that of a replayed CUDA graph, over inputs that exceed the L2 cache where those of a real step would. The
table also has the share of the measured copy bandwidth or matrix rate of the device. A variant is named by the options
that it changes; ``default`` is the engine's choice. It needs a GPU.

The command is benchmarks/kernels.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import linear

from draftline.kernels.attention_spec import AttentionSpec
from draftline.kernels.batch import LayerCache
from draftline.kernels.reference.ops import ReferenceOps
from draftline.kernels.slots import Masks, SampleRows, SamplingFeatures, SlotTable
from draftline.kernels.triton.linear.gemm import gemm
from draftline.kernels.triton.linear.gemm_config import GemmConfig
from draftline.kernels.triton.linear.gemm_m16 import GemmM16Config, gemm_m16, max_gemm_m16_rows
from draftline.kernels.triton.linear.gemm_m16_parts import GemmM16PartsConfig, gemm_m16_parts, max_parts_rows
from draftline.kernels.triton.linear.parts import part_channels
from draftline.kernels.triton.ops import TritonOps
from kernel_timing.attention import decode, prefill
from kernel_timing.divisions import divisions, mixed_divisions, prompt_divisions
from kernel_timing.models import BLOCK_SIZE, DEVICE, EPS, LLAMA_8B, QWEN3, SMOLLM2, ModelSizes, make_batch, randn
from kernel_timing.steps import DecodeStep, MixedStep, Step, VendorOps, make_weights
from kernel_timing.timing import Bench, Ceilings, copies_beyond_cache, relative_error
from kernel_timing.uneven import uneven


def elementwise_case(bench: Bench, ops: TritonOps, model: ModelSizes, tokens: int) -> None:
    """One model and number of tokens."""
    count = copies_beyond_cache(tokens * model.intermediate * 6, 16) if tokens > 64 else 16
    batch = make_batch(tokens, 1, 64)
    shape = (tokens * 4, BLOCK_SIZE, model.kv_heads, model.head_dim)
    cache = LayerCache(randn(*shape), randn(*shape))
    copy = LayerCache(cache.keys.clone(), cache.values.clone())
    rope = torch.randn(64, 2, model.head_dim // 2, device=DEVICE)
    scale = randn(model.hidden)
    norms = (randn(model.head_dim), randn(model.head_dim)) if model.qk_norm else None
    spec = AttentionSpec(rope, model.head_dim**-0.5, norms=norms, eps=EPS)
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
        [partial(ops.rope_write_kv, x, batch, cache, spec) for x in qkv],
        num_bytes=4.0 * tokens * model.qkv,
        check=lambda: relative_error(
            ops.rope_write_kv(qkv[0].clone(), batch, cache, spec),
            ReferenceOps().rope_write_kv(qkv[0], batch, copy, spec),
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
    """Norms, rotary embeddings with cache writes, and activations."""
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


GEMM_M16_CONFIGS = [
    GemmM16Config(rows, k, early, stages)
    for rows, k, early, stages in [
        (64, 128, 2, 4), (64, 128, 4, 5), (64, 256, 1, 4), (64, 512, 2, 1), (32, 256, 2, 5), (32, 512, 1, 4), (32, 512, 2, 4),
    ]
]  # fmt: skip
GEMM_M16_PARTS_CONFIGS = [
    GemmM16PartsConfig(rows, k, early)
    for rows, k, early in [(16, 128, 4), (16, 256, 1), (16, 256, 2), (16, 256, 3), (32, 128, 4), (32, 256, 2)]
]
GEMM_CONFIGS = [
    GemmConfig(m, n, k, w, s)
    for m, n, k, w, s in [
        (64, 16, 256, 4, 4), (64, 32, 256, 4, 4), (64, 64, 128, 4, 5), (64, 64, 64, 4, 6), (64, 128, 64, 4, 4), (128, 128, 64, 8, 5),
    ]
]  # fmt: skip


def linear_case(
    bench: Bench, model: ModelSizes, rows: int, name: str, shape: tuple[int, int], with_variants: bool
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

    def few(config: GemmM16Config | None, overlap: bool) -> Callable[[Tensor], Tensor]:
        return lambda weight: gemm_m16(x, weight, config=config, overlap=overlap)

    def more(config: GemmConfig | None, overlap: bool) -> Callable[[Tensor], Tensor]:
        return lambda weight: gemm(x, weight, config=config, overlap=overlap)

    def in_parts(config: GemmM16PartsConfig | None, overlap: bool) -> Callable[[Tensor], Tensor]:
        return lambda weight: gemm_m16_parts(x, weight, config=config, overlap=overlap)

    part = part_channels(weights[0])
    if part and rows <= max_parts_rows(n * k):
        default, overlapped = in_parts(None, False), in_parts(None, True)
        others = {str(config): in_parts(config, False) for config in GEMM_M16_PARTS_CONFIGS}
    elif not part and rows <= max_gemm_m16_rows(n * k, overlap=True):
        default, overlapped = few(None, False), few(None, True)
        others = {str(config): few(config, False) for config in GEMM_M16_CONFIGS if config.block_k <= k}
    else:
        default, overlapped = more(None, False), more(None, True)
        fitting = [config for config in GEMM_CONFIGS if config.block_k <= k and not part % config.block_k]
        others = {str(config): more(config, False) for config in fitting}
    times = {
        "cublas": measure("cublas", lambda weight: linear(x, weight)),
        "default": measure("default", default),
        "overlapped": measure("overlapped", overlapped),
    }
    best = min(times["default"], times["overlapped"])
    if with_variants:
        best = min([best, *(measure(label, function) for label, function in others.items())])
    return {**times, "best": best}


def linears(bench: Bench, _: TritonOps) -> None:
    """Linear layers of a decode step, each weight read once: a result for each weight, and the sum over the step."""
    for model, rows, with_variants in [
        (LLAMA_8B, 1, True),
        (QWEN3, 1, True),
        (SMOLLM2, 1, False),
        (LLAMA_8B, 5, True),
        (QWEN3, 5, True),
        (SMOLLM2, 5, False),
        (LLAMA_8B, 8, False),
        (LLAMA_8B, 16, False),
        (LLAMA_8B, 64, True),
        (QWEN3, 64, True),
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


def step_error(step: Step, ops: TritonOps, expected: Tensor) -> float:
    """The relative error of a step's logits."""
    return relative_error(step.run(ops), expected)


def steps(bench: Bench, ops: TritonOps) -> None:
    """Whole greedy decode steps in one graph: as in the engine, without overlap, and with nothing fused."""
    apart = dataclasses.replace(ops.limits, capability=80)
    variants = {
        "vendor, nothing fused": VendorOps(apart, ops.dense),
        "default, no overlap": dataclasses.replace(ops, limits=apart),
        "default": ops,
    }
    for model, sizes in [
        (QWEN3, [(1, 1, 400), (1, 5, 400), (8, 1, 256), (24, 1, 640), (24, 1, 3500), (64, 1, 640), (256, 1, 640)]),
        (SMOLLM2, [(1, 1, 400), (8, 1, 256), (8, 5, 400), (64, 1, 640), (96, 1, 400), (64, 5, 400), (256, 1, 640)]),
        (LLAMA_8B, [(1, 1, 400), (1, 5, 400), (8, 1, 256), (24, 1, 640), (24, 1, 3500), (64, 1, 640)]),
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


def mixed(bench: Bench, ops: TritonOps) -> None:
    """Whole steps of decodes or verifies beside prompts, in graphs of the engine's sizes."""
    plain = VendorOps(dataclasses.replace(ops.limits, capability=80), ops.dense)
    cases: list[tuple[tuple[int, int], tuple[int, ...], tuple[int, int]]] = [
        ((7, 1), (42,), (8, 64)),
        ((7, 5), (200,), (32, 256)),
        ((63, 1), (42,), (64, 128)),
        ((63, 1), (900,), (64, 1024)),
        ((63, 5), (60,), (64, 384)),
        ((63, 4), (860,), (64, 1280)),
        ((63, 4), (1100,), (64, 1408)),
        ((63, 4), (1100,), (64, 1536)),
        ((60, 4), (860, 1050, 60, 60), (64, 2560)),
        ((119, 1), (200, 200), (128, 768)),
    ]
    for model in (SMOLLM2, QWEN3):
        if time.monotonic() > bench.deadline:
            bench.left_out.append(f"mixed steps of {model.name}")
            continue
        weights = make_weights(model)
        for (count, query_len), prompts, graph in cases:
            step = MixedStep(model, weights, (count, query_len, 400), prompts, graph)
            expected = step.run(plain)
            bench.case(
                "mixed",
                f"{model.name} {count}x{query_len} ctx 400, prompts {'+'.join(map(str, prompts))}, graph {graph}",
                "default",
                [partial(step.run, ops)],
                num_bytes=step.num_bytes,
                check=partial(step_error, step, ops, expected),
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
    "mixed": mixed,
    "uneven": uneven,
    "prefill": prefill,
    "linears": linears,
    "divisions": divisions,
    "mixed-divisions": mixed_divisions,
    "prompt-divisions": prompt_divisions,
}


def main() -> None:
    """Run the sections within the time limit, print the table, save the results."""
    parser = argparse.ArgumentParser(description="Time Triton operations at the shapes of real models.")
    parser.add_argument(
        "--sections",
        default=",".join(name for name in SECTIONS if "divisions" not in name),
        help=f"comma-separated, of {', '.join(SECTIONS)} (default: all but divisions, which take minutes)",
    )
    parser.add_argument("--seconds", type=float, default=220.0, help="start no case after this time (default: 220)")
    parser.add_argument("--out", type=Path, help="save all results to this JSON file")
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
