"""The fastest divisions of a small model's products, in whole steps: tiles, and of few rows when the next kernel starts.

A product's division decides how much room and time its neighbours have, so the best of each product alone are not the best together.
The search begins with the engine's choices. It tries each product's candidates with the others as they are, keeps what is faster, and
goes round until nothing is. Every step must have the bits of the engine's own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from draftline.kernels.triton.compile.ahead import CompileAhead
from draftline.kernels.triton.device import DeviceLimits
from draftline.kernels.triton.linear import dense
from draftline.kernels.triton.linear.gemm_config import MANY_ROWS, GemmConfig, keeps_busy, max_own_rows
from draftline.kernels.triton.linear.gemm_m16 import GemmM16Config, gemm_m16_config, max_gemm_m16_rows
from draftline.kernels.triton.linear.gemm_m16_parts import GemmM16PartsConfig, max_parts_rows
from draftline.kernels.triton.linear.parts import part_channels
from draftline.kernels.triton.ops import TritonOps
from draftline.kernels.triton.overlap import AT_ONCE, PREPARED, WAITED
from draftline.models.layers import DecoderWeights
from kernel_timing.models import DEVICE, DTYPE, QWEN3, SMOLLM2, ModelSizes
from kernel_timing.steps import DecodeStep, MixedStep, Step, make_weights
from kernel_timing.timing import Bench

Division = GemmM16Config | GemmM16PartsConfig | GemmConfig
Divisions = dict[tuple[int, int], Division]
"""By the shape of the weight, [N, K]; a product that is missing has the engine's."""

STEPS = [
    (1, 1, 400),
    (1, 5, 400),
    (4, 1, 400),
    (8, 1, 400),
    (1, 1, 2000),
    (12, 1, 400),
    (32, 1, 400),
    (8, 3, 400),
    (8, 5, 400),
]
"""Sequences, tokens of each, and their context."""

VERIFIES = (63, 4, 330)
"""Sequences, tokens of each, and their context, beside a prompt."""

STEP_TOKENS = (320, 384, 512, 640, 768, 896, 1024, 1280, 1408, 1536, 1792, 2048)
"""Tokens of steps with prompts."""

PROMPTS = (
    (60,),
    (250,),
    (500,),
    (1000,),
    (2000,),
    (2300,),
    (1000,) * 3,
    (1000,) * 4,
    (1000,) * 5,
    (2600,) * 2,
    (3000,) * 2,
    (2000,) * 4,
)
"""Tokens of the prompts of steps without decodes."""

_ROUNDS = 3
_LEAST_GAIN = 0.003
"""The share of a step's time that another division must gain: less is noise."""

_LEAST_SUMS, _MOST_SUMS = 16, 128
"""A thread's sums of a product of many rows: with fewer, loading the factors takes longest."""

_MOST_SUMS_OF_PROMPTS = 256
"""With more than `MANY_ROWS`. Then loading the factors takes the least time."""

_STARTS = [AT_ONCE.value, PREPARED.value, WAITED.value]
_MOST_EARLY_BYTES = 48 << 10
"""Of one part, in tiles of the weight and of x that a program loads early."""


def candidates(n: int, k: int, rows: int, limits: DeviceLimits, *, swiglu: bool = False) -> list[Division]:
    """The divisions to try of a product of so many rows with a weight [n, k]; none if it is the vendor's."""
    part = part_channels(torch.empty(n, k, dtype=DTYPE, device="meta"))
    few = max_parts_rows(n * k) if part else max_gemm_m16_rows(n * k, overlap=True)
    if rows <= few:
        return list(_in_parts(part, rows, limits) if part else _whole(n, k, rows, limits))
    own = part or rows <= max_own_rows(n * k, swiglu=swiglu)
    own = own or keeps_busy(rows, n // 2 if swiglu else n, limits, swiglu=swiglu)
    return list(_of_many(part, rows, limits, swiglu)) if own else []


def _whole(n: int, k: int, rows: int, limits: DeviceLimits) -> Iterator[GemmM16Config]:
    """Of sums that have no parts: the engine's tiles, and of few channels others, all of which are loaded early."""
    engine = gemm_m16_config(rows, n, k, overlap=True)
    tiles = [engine]
    if engine.early == k // engine.block_k:
        tiles += [
            GemmM16Config(block_n, block_k, early=k // block_k, num_stages=1)
            for block_n, block_k in product((32, 64), (128, 256, 512))
            if block_k <= k
        ]
    for division, starts in product(dict.fromkeys(tiles), _STARTS):
        if division.shared_bytes(limits, k, DTYPE.itemsize) <= limits.shared_bytes:
            yield replace(division, starts_next=starts)


def _in_parts(part: int, rows: int, limits: DeviceLimits) -> Iterator[GemmM16PartsConfig]:
    # Up to 16 rows, a program has all of them.
    for tokens, block_n, block_k, starts in product((8, 16) if rows > 16 else (16,), (16, 32), (128, 256), _STARTS):
        most = max(min(part // block_k, _MOST_EARLY_BYTES // ((block_n + tokens) * block_k * 2)), 1)
        for early in sorted({0, 1, most}):
            rest = early * block_k < part - part % block_k
            division = GemmM16PartsConfig(
                block_n, block_k, early, ahead=256 if rest else 0, starts_next=starts, tokens=tokens
            )
            if division.shared_bytes(part, DTYPE.itemsize) <= limits.shared_bytes:
                yield division


def _of_many(part: int, rows: int, limits: DeviceLimits, swiglu: bool) -> Iterator[GemmConfig]:
    """Of many rows: tiles that four warps or eight multiply, as far as their registers hold the sums."""
    heights, widths, most = [64, 128], [32, 64, 128], _MOST_SUMS
    programs = [0]  # one a tile, or some a multiprocessor, which take tiles in turn
    if rows > MANY_ROWS:
        heights, widths, most = [*heights, 256], [*widths, 256], _MOST_SUMS_OF_PROMPTS
        programs = [0] if part else [0, 1, 2]
    for block_m, block_n, block_k, stages, in_turn in product(heights, widths, (64, 128), (3, 4, 5), programs):
        if part % block_k:
            continue
        for warps in (4, 8) if block_m > 64 else (4,):
            division = GemmConfig(block_m, block_n, block_k, warps, stages, in_turn)
            sums = block_m * block_n * (2 if swiglu or part else 1) // (32 * warps)
            shared = division.shared_bytes(limits, DTYPE.itemsize, swiglu=swiglu) * max(in_turn, 1)
            if _LEAST_SUMS <= sums <= most and shared <= limits.shared_bytes:
                yield division


@contextmanager
def dividing(divisions: Divisions) -> Iterator[None]:
    """Our own products are divided so."""

    def with_division(kernel: Any) -> Any:
        def run(x: Tensor, weight: Tensor, *args: Any, **options: Any) -> Tensor:
            n, k = weight.shape
            result: Tensor = kernel(x, weight, *args, config=divisions.get((n, k)), **options)
            return result

        return run

    changed = {name: with_division(getattr(dense, name)) for name in ("gemm", "gemm_m16", "gemm_m16_parts")}
    with patch.multiple(dense, **changed):
        yield


def tried(model: ModelSizes, rows: int, limits: DeviceLimits) -> Iterator[tuple[str, tuple[int, int], Division]]:
    """The candidates of all of a layer's products, with the product's name and the shape of its weight."""
    for name, shape in model.linears.items():
        for division in candidates(*shape, rows, limits, swiglu=name == "gate_up"):
            yield name, shape, division


def compile_candidates(ops: TritonOps, model: ModelSizes, step: Step) -> None:
    """Compile the kernels of a step's candidates in several processes."""
    with closing(CompileAhead(DEVICE)) as ahead:
        with ahead.rehearsal():
            for _, shape, division in tried(model, step.tokens, ops.limits):
                with dividing({shape: division}):
                    step.run(ops)
        ahead.load()


def search(bench: Bench, ops: TritonOps, model: ModelSizes, step: Step, case: str) -> None:
    """Find the fastest divisions for one step."""
    expected = step.run(ops)

    def differs() -> float:
        return 0.0 if torch.equal(step.run(ops), expected) else 1.0

    def took(divisions: Divisions, variant: str) -> float:
        with dividing(divisions):
            time_of = bench.case(
                "divisions", case, variant, [partial(step.run, ops)], num_bytes=step.num_bytes, check=differs
            )
        return time_of if time_of is not None else float("inf")

    chosen: Divisions = {}
    best = min([took(chosen, "default") for _ in range(2)])  # the first one, behind compiling, can be too long
    for _ in range(_ROUNDS):
        before = best
        for name, shape, division in tried(model, step.tokens, ops.limits):
            another = {**chosen, shape: division}
            this = took(another, f"{name}={division}")
            if this < best * (1 - _LEAST_GAIN):
                best, chosen = this, another
        if best == before:
            break
    bench.case_known("divisions", case, f"all={[str(one) for one in chosen.values()]}", best, num_bytes=step.num_bytes)


def divisions(bench: Bench, ops: TritonOps) -> None:
    """The steps of few rows of models whose launches are short."""
    for model, weights in _models(bench, "divisions"):
        for rows, query_len, context in STEPS:
            step = DecodeStep(model, weights, rows, query_len, context)
            search(bench, ops, model, step, f"{model.name} {rows}x{query_len} ctx {context}")


def mixed_divisions(bench: Bench, ops: TritonOps) -> None:
    """Their steps of verifies beside a prompt, in the engine's graphs."""
    count, query_len, _ = VERIFIES
    for model, weights in _models(bench, "mixed-divisions"):
        for tokens in STEP_TOKENS:
            prompt = tokens - (count + 1) * query_len
            if time.monotonic() > bench.deadline:
                bench.left_out.append(f"mixed-divisions of {model.name}, prompt {prompt}")
                continue
            step = MixedStep(model, weights, VERIFIES, (prompt,), (count + 1, tokens))
            compile_candidates(ops, model, step)
            search(bench, ops, model, step, f"{model.name} {count}x{query_len}, prompt {prompt}")


def prompt_divisions(bench: Bench, ops: TritonOps) -> None:
    """Their steps of prompts alone."""
    for model, weights in _models(bench, "prompt-divisions"):
        for prompts in PROMPTS:
            if time.monotonic() > bench.deadline:
                bench.left_out.append(f"prompt-divisions of {model.name}, prompts {prompts}")
                continue
            step = MixedStep(model, weights, (0, 1, 0), prompts, (8, sum(prompts)))
            compile_candidates(ops, model, step)
            search(bench, ops, model, step, f"{model.name} prompts {'+'.join(map(str, prompts))}")


def _models(bench: Bench, section: str) -> Iterator[tuple[ModelSizes, DecoderWeights]]:
    """The models, with weights, until the time is over."""
    for model in (SMOLLM2, QWEN3):
        if time.monotonic() > bench.deadline:
            bench.left_out.append(f"{section} of {model.name}")
            continue
        yield model, make_weights(model)
