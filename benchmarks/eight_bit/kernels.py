"""The GPU sections of quantization.py: layers, attention, memory, and tile configurations of the products."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from kernel_timing.models import BLOCK_SIZE, DEVICE, EPS, LLAMA_8B, QWEN3, SMOLLM2, make_batch, randn
from kernel_timing.steps import VendorOps
from kernel_timing.timing import Bench, Ceilings, copies_beyond_cache, relative_error
from torch import Tensor
from torch.nn.functional import silu

from draftline.engine.bench.contenders.shapes import LLAMA_3_1_8B
from draftline.kernels.attention_spec import AttentionSpec
from draftline.kernels.batch import KVCache, LayerCache, bytes_a_head
from draftline.kernels.ops import Ops
from draftline.kernels.scaled import GROUP, ScaledWeight, quantize, quantize_activations, scaled_up
from draftline.kernels.triton.linear.quantize import quantize_rows
from draftline.kernels.triton.linear.scaled_gemm import ScaledGemmConfig, scaled_gemm
from draftline.kernels.triton.linear.scaled_gemm_m16 import ScaledGemmM16Config, scaled_gemm_m16
from draftline.kernels.triton.ops import TritonOps
from draftline.models.families import build_model
from draftline.models.loader import open_checkpoint
from draftline.quant.dense import DenseLinear
from draftline.quant.linear import Linear
from draftline.quant.scaled import ScaledLinear

FP8, INT8 = torch.float8_e4m3fn, torch.int8
ROWS = (1, 4, 16, 64, 256, 2048, 8192)


def make_scaled(weight: Tensor, kind: str) -> ScaledWeight:
    """A weight in the format ``fp8`` or ``int8`` (a scale a row), or ``fp8-block`` (a scale a block of 128 x 128)."""
    n, k = weight.shape
    if kind != "fp8-block":
        data, scale = quantize(weight, FP8 if kind == "fp8" else INT8, -1)
        return ScaledWeight(data, scale, 1, k)
    padded = torch.nn.functional.pad(weight, (0, -k % GROUP, 0, -n % GROUP))
    blocks = padded.view(padded.shape[0] // GROUP, GROUP, -1, GROUP)
    data, scale = quantize(blocks, FP8, (1, 3))
    return ScaledWeight(data.view(padded.shape)[:n, :k].contiguous(), scale[:, 0, :, 0].contiguous(), GROUP, GROUP)


FORMATS: dict[str, Callable[[Tensor], Linear]] = {
    "bf16": lambda weight: DenseLinear(weight, None),
    **{
        kind: partial(lambda weight, kind: ScaledLinear(make_scaled(weight, kind), None), kind=kind)
        for kind in ("fp8", "fp8-block", "int8")
    },
}


class Layer:
    """The projections of one layer in one format.

    Attributes:
        nbytes: the size of its weights.
    """

    def __init__(self, weights: dict[str, Tensor], make: Callable[[Tensor], Linear]) -> None:
        self._linears = {name: make(weight) for name, weight in weights.items()}
        self.nbytes = sum(linear.nbytes for linear in self._linears.values())

    def run(self, x: Tensor, attended: Tensor, norm: Tensor, ops: Ops) -> tuple[Tensor, Tensor]:
        """The first projection's output, and the residual stream after the others."""
        linears = self._linears
        qkv = linears["qkv"].norm_linear(x, norm, EPS, ops)
        residual = linears["o"].linear_add(attended, x.clone(), ops)
        inner = linears["gate_up"].norm_swiglu(residual, norm, EPS, ops)
        return qkv, linears["down"].linear_add(inner, residual, ops)


def exact_layer(weights: dict[str, Tensor], x: Tensor, attended: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
    """`Layer.run` in float64."""
    wide = {name: weight.double().T for name, weight in weights.items()}

    def normed(value: Tensor) -> Tensor:
        value = value.double()
        return value / (value.square().mean(-1, keepdim=True) + EPS).sqrt() * norm.double()

    residual = x.double() + attended.double() @ wide["o"]
    gate, up = (normed(residual) @ wide["gate_up"]).chunk(2, -1)
    return normed(x) @ wide["qkv"], residual + (silu(gate) * up) @ wide["down"]


# Of weights and activations both: 2.5% each for FP8, and a second layer on top of the first; INT8's weights alone a third.
_BOUNDS = {"bf16": 1e-2, "vendor's bf16": 1e-2, "fp8": 8e-2, "fp8-block": 8e-2, "int8": 3e-2}


def layers(bench: Bench, ops: TritonOps) -> None:
    """The projections of a layer by number of rows."""
    for model in (LLAMA_8B, QWEN3, SMOLLM2):
        for kind, make in FORMATS.items():
            if time.monotonic() > bench.deadline:
                bench.left_out.append(f"layers {model.name} {kind}")
                continue
            weights = {name: randn(n, k, scale=k**-0.5) for name, (n, k) in model.linears.items()}
            first = Layer(weights, make)
            count = copies_beyond_cache(first.nbytes, 24)
            copies = [first] + [
                Layer({name: randn(*weight.shape, scale=0.02) for name, weight in weights.items()}, make)
                for _ in range(count - 1)
            ]
            variants: dict[str, Ops] = {kind: ops}
            if kind == "bf16":
                variants["vendor's bf16"] = VendorOps(ops.limits, ops.dense)
            for rows in ROWS if model is LLAMA_8B else ROWS[:5]:
                x, attended = randn(rows, model.hidden), randn(rows, model.heads * model.head_dim)
                norm = 1 + randn(model.hidden, scale=0.1)
                few = min(rows, 32)
                expected = exact_layer(weights, x[:few], attended[:few], norm)
                for variant, chosen in variants.items():
                    bench.case(
                        "layers",
                        f"{model.name} {rows} rows",
                        variant,
                        [partial(layer.run, x, attended, norm, chosen) for layer in copies],
                        num_bytes=first.nbytes,
                        flops=2.0 * rows * sum(n * k for n, k in model.linears.values()) if rows > 256 else 0.0,
                        check=partial(_layer_error, first, (x, attended, norm), chosen, expected),
                        bound=_BOUNDS[variant],
                    )
            del copies, first, weights
            torch.cuda.empty_cache()


def _error(call: Callable[[], Tensor], expected: Tensor) -> float:
    return relative_error(call(), expected)


def _layer_error(
    layer: Layer, inputs: tuple[Tensor, Tensor, Tensor], ops: Ops, expected: tuple[Tensor, Tensor]
) -> float:
    few = expected[0].shape[0]
    return max(relative_error(a[:few], e) for a, e in zip(layer.run(*inputs, ops), expected, strict=True))


def attention(bench: Bench, ops: TritonOps) -> None:
    """Attention of a decode step over caches of each dtype, checked against the bfloat16 cache."""
    for model, rows, context in ((QWEN3, 1, 400), (QWEN3, 64, 640), (QWEN3, 256, 640), (LLAMA_8B, 64, 640)):
        batch = make_batch(rows, 1, context)
        blocks = batch.block_tables.numel()
        qkv = randn(rows, model.qkv)
        rope = torch.zeros(context, 2, model.head_dim // 2, device=DEVICE)
        rope[:, 0] = 1
        spec = AttentionSpec(rope, model.head_dim**-0.5)
        content = randn(2, blocks, BLOCK_SIZE, model.kv_heads, model.head_dim)
        expected: Tensor | None = None
        for kind, dtype in (("bf16", torch.bfloat16), ("fp8", FP8), ("int8", INT8)):
            num_bytes = 2.0 * rows * context * model.kv_heads * bytes_a_head(model.head_dim, dtype)
            caches = [_filled(content, dtype) for _ in range(copies_beyond_cache(int(num_bytes), 32))]
            calls = [partial(ops.rope_attention, qkv, batch, cache, spec) for cache in caches]
            if expected is None:
                copy = LayerCache(caches[0].keys.clone(), caches[0].values.clone())
                expected = ops.rope_attention(qkv.clone(), batch, copy, spec)
            bench.case(
                "attention",
                f"{model.name} {rows} x {context}",
                kind,
                calls,
                num_bytes=num_bytes,
                check=partial(_error, calls[0], expected),
                bound=6e-2,
            )
            del caches, calls
            torch.cuda.empty_cache()


def _filled(content: Tensor, dtype: torch.dtype) -> LayerCache:
    blocks, size, heads, head_dim = content.shape[1:]
    (cache,) = KVCache.allocate(1, blocks, size, heads, head_dim, dtype=dtype, device=DEVICE).layers
    for stored, values, index in ((cache.keys, content[0], 0), (cache.values, content[1], 1)):
        if dtype == INT8:
            data, scale = quantize(values, INT8, -1)
            stored.copy_(data)
            assert cache.scales is not None
            cache.scales[index].copy_(scale.squeeze(-1))
        else:
            stored.copy_(values.to(dtype))
    return cache


def memory(bench: Bench, ops: TritonOps) -> None:
    """Llama-8B loaded with dummy weights: the size of the weights, the allocated memory, and the peak while loading."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(LLAMA_3_1_8B))
        dense = 0
        for kind in ("auto", "fp8", "int8"):
            if time.monotonic() > bench.deadline:
                bench.left_out.append(f"memory {kind}")
                continue
            checkpoint = open_checkpoint(folder, load_format="dummy", quantization=kind)
            torch.cuda.reset_peak_memory_stats()
            before, begin = torch.cuda.memory_allocated(), time.monotonic()
            model = build_model(checkpoint, checkpoint.config, ops, torch.bfloat16, DEVICE)
            torch.cuda.synchronize()
            seconds = time.monotonic() - begin
            held = torch.cuda.memory_allocated() - before
            peak = torch.cuda.max_memory_allocated() - before
            outside = 2 * 2 * LLAMA_3_1_8B["vocab_size"] * LLAMA_3_1_8B["hidden_size"]
            linears = model.nbytes - outside
            dense = dense or linears
            print(
                f"memory llama-8b {model.quantization}: projections {linears / 2**30:.3f} GiB"
                f" ({linears / dense:.3f} of bf16), with embedding and head {model.nbytes / 2**30:.2f}, allocated"
                f" {held / 2**30:.2f}, at most {peak / 2**30:.2f} while loading, {seconds:.1f} s",
                flush=True,
            )
            del model
            torch.cuda.empty_cache()


_FEW = [
    ScaledGemmM16Config(*numbers)
    for numbers in (
        (32, 128, 2, 6, 512), (32, 128, 4, 4, 512), (32, 128, 4, 8, 0), (64, 128, 2, 6, 512), (64, 128, 4, 4, 512),
        (64, 128, 4, 6, 512),
    )
]  # fmt: skip
_MANY = [
    ScaledGemmConfig(*numbers)
    for numbers in (
        (64, 32, 4, 8), (64, 64, 4, 5), (64, 64, 4, 8), (64, 128, 4, 4), (128, 64, 8, 3), (128, 128, 8, 3), (128, 128, 8, 4),
    )
]  # fmt: skip
_OVERLAPPED_ROWS = 64


def divisions(bench: Bench, ops: TritonOps) -> None:
    """Every product alone, in several tile configurations; ``default`` is the engine's choice."""
    cases: list[tuple[str, int, Callable[..., Tensor], Sequence[Any]]] = [
        ("fp8", 1, scaled_gemm_m16, _FEW),
        ("int8", 1, scaled_gemm_m16, _FEW),
        ("fp8", 16, scaled_gemm_m16, _FEW),
        ("int8", 8, scaled_gemm_m16, _FEW),
        ("fp8", 64, scaled_gemm, _MANY),
        ("int8", 2048, scaled_gemm, _MANY),
    ]
    for name, (n, k) in LLAMA_8B.linears.items():
        swiglu, adds = name == "gate_up", name in ("o", "down")
        for kind, rows, multiply, configs in cases:
            copies = [make_scaled(randn(n, k, scale=0.02), kind) for _ in range(copies_beyond_cache(n * k))]
            plain = randn(rows, k)
            x, scale = quantize_rows(plain, copies[0].data.dtype, grouped=copies[0].grouped)
            values, value_scale = quantize_activations(plain, copies[0].data.dtype, grouped=copies[0].grouped)
            wide = scaled_up(values, value_scale.t().contiguous(), 1, copies[0].columns).double()
            expected = wide @ copies[0].dequantized().double().T
            if swiglu:
                gate, up = expected.chunk(2, -1)
                expected = silu(gate) * up
            residual = randn(*expected.shape) if adds else None
            expected = expected if residual is None else expected + residual.double()
            for config in (None, *configs):
                run = partial(
                    multiply,
                    x,
                    scale,
                    bias=None,
                    dtype=torch.bfloat16,
                    swiglu=swiglu,
                    residual=residual,
                    overlap=rows <= _OVERLAPPED_ROWS,
                    config=config,
                )
                fields = "" if config is None else ",".join(str(getattr(config, field)) for field in config.__slots__)
                bench.case(
                    "divisions",
                    f"{name} {rows} rows {kind}",
                    fields or "default",
                    [partial(run, weight=weight) for weight in copies],
                    num_bytes=n * k,
                    check=partial(_error, partial(run, weight=copies[0]), expected),
                )
            del copies
            torch.cuda.empty_cache()


SECTIONS: dict[str, Callable[[Bench, TritonOps], None]] = {
    "layers": layers,
    "attention": attention,
    "memory": memory,
    "divisions": divisions,
}


def run_sections(names: list[str], deadline: float, out: Path | None) -> None:
    """Run the sections, print their results, and save them."""
    torch.manual_seed(0)
    ops = TritonOps.for_device(DEVICE)
    bench = Bench(Ceilings.measure(), deadline)
    for name in names:
        SECTIONS[name](bench, ops)
        torch.cuda.empty_cache()
    if out is not None:
        bench.save(out)
    print("\n" + bench.report())
