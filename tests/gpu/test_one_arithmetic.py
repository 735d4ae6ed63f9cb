"""One arithmetic on a real GPU: a row has the same bits whatever else is computed with it, and by which kernel.

Products of every number of rows against those of the most, and attention by every way to compute it against one prompt chunk.
The types are those that models run in; `tests/kernels/triton` has the same in Triton's interpreter.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
from _pytest.mark import ParameterSet
from covering import covering
from known_prompt import Layer, Prompt, Run, make_prompt
from scattered_batch import scattered_batch
from torch import Tensor
from torch.nn.functional import pad

from draftline.kernels.attention_spec import AttentionSpec
from draftline.kernels.batch import Batch, LayerCache
from draftline.kernels.scaled import GROUP, ScaledWeight, quantize
from draftline.kernels.triton.ops import TritonOps

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and torch finds none here")

EPS = 1e-6
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
FP8, INT8 = torch.float8_e4m3fn, torch.int8
TYPES = {"bfloat16": BF16, "float16": FP16, "float32": FP32}
ROWS = (1, 2, 5, 8, 16, 17, 32, 33, 64, 65, 100, 128, 256, 2048, 4096)
"""The fewest and the most of every kernel and division, and numbers between."""

MOST_FLOAT32_ROWS = 128
"""Exact float32 products are slow."""


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator("cuda").manual_seed(3)


@pytest.fixture(autouse=True)
def _fp8_needs_hardware(request: pytest.FixtureRequest) -> None:
    if "fp8" in request.node.name and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("FP8 needs compute capability 8.9")


def draw(rng: torch.Generator, *shape: int, dtype: torch.dtype = BF16, scale: float = 1.0) -> Tensor:
    return (scale * torch.randn(shape, generator=rng, device=rng.device)).to(dtype)


def assert_same_rows(layer: Callable[[int], Tensor], most: int) -> None:
    """The first rows of a layer have the bits of the same rows among ``most``."""
    together = layer(most).view(torch.uint8)
    for rows in ROWS:
        if rows <= most:
            wrong = (layer(rows).view(torch.uint8) != together[:rows]).any(1)
            assert not wrong.any(), f"of {rows} rows, {int(wrong.sum())} have other bits than among {most}"


# All channels in one tile, and in one of each part; as in SmolLM2 135M (qkv, down), Qwen2.5 0.5B (down, whose last part is shorter), Qwen3
# 0.6B (qkv, down), Llama 1B (o, down) and Llama 8B (qkv, down, gates and ups).
SHAPES = [
    (256, 128),
    (256, 512),
    (960, 576),
    (576, 1536),
    (896, 4864),
    (4096, 1024),
    (1024, 3072),
    (2048, 2048),
    (2048, 8192),
    (6144, 4096),
    (4096, 14336),
    (28672, 4096),
]
SIZES = {f"{n}x{k}": (n, k) for n, k in SHAPES}


OTHER_TYPES = {"float16": FP16, "float32": FP32}


@pytest.mark.parametrize(
    ("n", "k", "dtype"),
    covering(SIZES, {"bfloat16": BF16}, group="one-dense")
    + covering(SIZES, OTHER_TYPES, group="one-dense", max_pairs=len(SIZES)),
)
def test_dense_layers(n: int, k: int, dtype: torch.dtype, ops: TritonOps, rng: torch.Generator) -> None:
    most = MOST_FLOAT32_ROWS if dtype == FP32 else max(ROWS)
    x, norm = draw(rng, most, k, dtype=dtype), draw(rng, k, dtype=dtype)
    weight = draw(rng, n, k, dtype=dtype, scale=1 / math.sqrt(k))
    bias, residual = draw(rng, n, dtype=dtype), draw(rng, most, n, dtype=dtype)
    assert_same_rows(lambda rows: ops.linear(x[:rows], weight, None), most)
    assert_same_rows(lambda rows: ops.linear(x[:rows], weight, bias), most)
    assert_same_rows(lambda rows: ops.norm_linear(x[:rows], norm, EPS, weight, bias), most)
    assert_same_rows(lambda rows: ops.linear_add(x[:rows], weight, None, residual[:rows].clone()), most)
    assert_same_rows(lambda rows: ops.linear_add(x[:rows], weight, bias, residual[:rows].clone()), most)
    assert_same_rows(lambda rows: ops.norm_swiglu(x[:rows], norm, EPS, weight, None), most)
    assert_same_rows(lambda rows: ops.norm_swiglu(x[:rows], norm, EPS, weight, bias), most)


@pytest.mark.parametrize("dtype", [BF16, FP16], ids=["bfloat16", "float16"])
def test_dense_layers_without_the_vendor(dtype: torch.dtype, ops: TritonOps, rng: torch.Generator) -> None:
    """The verdicts decide the speed alone."""
    own = dataclasses.replace(ops, dense=dataclasses.replace(ops.dense, vendor=None))
    x, weight = draw(rng, 2048, 1024, dtype=dtype), draw(rng, 4096, 1024, dtype=dtype, scale=1 / 32)
    residual = draw(rng, 2048, 4096, dtype=dtype)
    for rows in (64, 128, 256, 1024, 2048):
        assert torch.equal(ops.linear(x[:rows], weight, None), own.linear(x[:rows], weight, None))
        added = [which.linear_add(x[:rows], weight, None, residual[:rows].clone()) for which in (ops, own)]
        assert torch.equal(*added)
        assert torch.equal(added[0], residual[:rows] + own.linear(x[:rows], weight, None))


def make_weight(rng: torch.Generator, n: int, k: int, kind: str) -> ScaledWeight:
    """With a scale a row, or one a block of 128 x 128."""
    weight = draw(rng, n, k, dtype=FP32, scale=k**-0.5)
    dtype = FP8 if kind.startswith("fp8") else INT8
    if not kind.endswith("-block"):
        data, scale = quantize(weight, dtype, -1)
        return ScaledWeight(data, scale, 1, k)
    padded = pad(weight, (0, -k % GROUP, 0, -n % GROUP))
    data, scale = quantize(padded.view(padded.shape[0] // GROUP, GROUP, -1, GROUP), dtype, (1, 3))
    return ScaledWeight(data.view(padded.shape)[:n, :k].contiguous(), scale[:, 0, :, 0].contiguous(), GROUP, GROUP)


@pytest.mark.parametrize(
    ("kind", "n", "k", "dtype"),
    covering(
        {kind: kind for kind in ("fp8", "fp8-block", "int8", "int8-block")},
        {f"{n}x{k}": (n, k) for n, k in ((576, 1536), (3072, 576), (6144, 4096), (4096, 14336))},
        {"bfloat16": BF16, "float16": FP16},
        group="one-scaled",
    ),
)
def test_eight_bit_layers(
    kind: str, n: int, k: int, dtype: torch.dtype, ops: TritonOps, rng: torch.Generator
) -> None:  # fmt: skip
    most = max(ROWS)
    weight, x, norm = make_weight(rng, n, k, kind), draw(rng, most, k, dtype=dtype), draw(rng, k, dtype=dtype)
    bias, residual = draw(rng, n, dtype=dtype), draw(rng, most, n, dtype=dtype)
    assert_same_rows(lambda rows: ops.scaled_linear(x[:rows], weight, bias), most)
    assert_same_rows(lambda rows: ops.scaled_norm_linear(x[:rows], norm, EPS, weight, None), most)
    assert_same_rows(lambda rows: ops.scaled_linear_add(x[:rows], weight, None, residual[:rows].clone()), most)
    assert_same_rows(lambda rows: ops.scaled_norm_swiglu(x[:rows], norm, EPS, weight, None), most)


@pytest.mark.parametrize(("width", "dtype"), covering({str(w): w for w in (576, 1024, 4096)}, TYPES, group="one-norms"))
def test_norms(width: int, dtype: torch.dtype, ops: TritonOps, rng: torch.Generator) -> None:
    most = max(ROWS)
    x, residual = draw(rng, 2, most, width, dtype=dtype)
    weight, bias = draw(rng, 2, width, dtype=dtype)
    assert_same_rows(lambda rows: ops.rms_norm(x[:rows], weight, EPS), most)
    assert_same_rows(lambda rows: ops.add_rms_norm(x[:rows], residual[:rows].clone(), weight, EPS)[0], most)
    assert_same_rows(lambda rows: ops.rms_norm_add(x[:rows], weight, EPS, residual[:rows].clone()), most)
    assert_same_rows(lambda rows: ops.layer_norm(x[:rows], weight, bias, EPS), most)
    total = x + residual
    assert torch.equal(ops.add_rms_norm(x, residual, weight, EPS)[0], ops.rms_norm(total, weight, EPS))


LENGTH = 1500
BOUND = 4096
"""The context of a graph: the plan shares histories out as if they were so long."""

LAYERS = {
    "llama-8b": Layer(32, 8, 128, dtype=BF16, cache=BF16),
    "qwen3": Layer(16, 8, 128, qk_norm=True, dtype=BF16, cache=BF16),
    "smollm2": Layer(9, 3, 64, dtype=BF16, cache=BF16),
    "window": Layer(32, 8, 128, window=300, dtype=BF16, cache=BF16),
    "gemma": Layer(4, 1, 256, window=512, soft_cap=50.0, qk_norm=True, dtype=BF16, cache=BF16),
    "phi-float16": Layer(32, 32, 80, dtype=FP16, cache=FP16),
    "float32-qk-norm": Layer(4, 2, 64, qk_norm=True, dtype=FP32, cache=FP32),
    "fp8-cache": Layer(32, 8, 128, dtype=BF16, cache=FP8),
    "fp8-cache-window-qk-norm": Layer(16, 8, 128, window=300, qk_norm=True, dtype=BF16, cache=FP8),
    "fp8-cache-80": Layer(32, 32, 80, dtype=FP16, cache=FP8),
    "int8-cache": Layer(32, 8, 128, dtype=BF16, cache=INT8),
    "int8-cache-64": Layer(9, 3, 64, dtype=BF16, cache=INT8),
}


def by(ops: TritonOps) -> Run:
    def run(qkv: Tensor, batch: Batch, layer: LayerCache, spec: AttentionSpec) -> Tensor:
        return ops.rope_attention(qkv, batch, layer, spec)

    return run


@pytest.fixture(scope="module")
def prompt(request: pytest.FixtureRequest, ops: TritonOps) -> Prompt:
    if "fp8" in request.param and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("FP8 needs compute capability 8.9")
    rng = torch.Generator("cuda").manual_seed(3)
    return make_prompt(LAYERS[request.param], LENGTH, by(ops), rng)


def by_layer(tried: Mapping[str, object]) -> list[ParameterSet]:
    """Every layer with what is tried of it, by default with half of that. A layer's tests run in one process."""
    return covering({layer: layer for layer in LAYERS}, tried, group="one", max_pairs=len(LAYERS))


@pytest.mark.parametrize(
    ("prompt", "chunks"),
    by_layer({"even": ((100, 37, 200, 63, 300, 400, 400),), "odd": ((33, 1, 2, 1464),)}),
    indirect=["prompt"],
)
def test_chunks_at_any_cut(chunks: tuple[int, ...], prompt: Prompt, ops: TritonOps) -> None:
    start = 0
    for count in chunks:
        prompt.check(by(ops), [(start, count)])
        start += count


STARTS = (0, 1, 63, 64, 255, 256, 257, 511, 640, 777, 1023, 1024, 1490)


@pytest.mark.parametrize(
    ("prompt", "queries"), by_layer({str(queries): queries for queries in (1, 2, 5, 9, 16, 32)}), indirect=["prompt"]
)
def test_decodes_and_verifies_alone(queries: int, prompt: Prompt, ops: TritonOps) -> None:
    for start in STARTS:
        if start + queries <= LENGTH:
            prompt.check(by(ops), [(start, queries)])
            prompt.check(by(ops), [(start, queries)], BOUND)


@pytest.mark.parametrize(("prompt", "num_sms"), by_layer({"8": 8, "40": 40}), indirect=["prompt"])
def test_on_smaller_devices(num_sms: int, prompt: Prompt, ops: TritonOps) -> None:
    """Histories are shared out to fewer programs, or not at all."""
    smaller = dataclasses.replace(ops, limits=dataclasses.replace(ops.limits, num_sms=num_sms))
    for start in (64, 777, 1490):
        for queries in (1, 5):
            prompt.check(by(smaller), [(start, queries)])
            prompt.check(by(smaller), [(start, queries), (start // 2, queries)], BOUND)


@pytest.mark.parametrize(
    ("prompt", "rows", "queries"),
    by_layer({f"{rows}x{queries}": (rows, queries) for rows in (8, 40, 200) for queries in (1, 5)}),
    indirect=["prompt"],
)
def test_rows_together(rows: int, queries: int, prompt: Prompt, ops: TritonOps) -> None:
    """Of one kind, and beside a prompt chunk."""
    spans = [((37 * row * row + 11 * row) % (LENGTH - queries), queries) for row in range(rows)]
    prompt.check(by(ops), spans, BOUND)
    prompt.check(by(ops), spans)
    prompt.check(by(ops), [*spans[:-1], (900, 100)])


QUERIES, SEQUENCES = {"1": 1, "5": 5}, {"8": 8, "40": 40, "200": 200}


@pytest.mark.parametrize(
    ("prompt", "queries", "rows"),
    # Each layer with both numbers of queries, which have different kernels.
    covering({layer: layer for layer in LAYERS}, QUERIES, SEQUENCES, group="one", max_pairs=len(LAYERS) * len(QUERIES)),
    indirect=["prompt"],
)
def test_a_few_long_histories_among_short_ones(queries: int, rows: int, prompt: Prompt, ops: TritonOps) -> None:
    """A long one is divided into parts; of narrow heads, all are."""

    def uneven(qkv: Tensor, batch: Batch, layer: LayerCache, spec: AttentionSpec) -> Tensor:
        divided = ops.divide_histories(batch, layer)
        assert divided.parts is not None
        least = int(batch.context_lens.sum()) * layer.keys.shape[2] // (2 * ops.limits.num_sms)
        assert int(divided.parts.starts[-1]) > 0 or least >= 1400
        return ops.rope_attention(qkv, divided, layer, spec)

    spans = [((37 * row * row + 11 * row) % 200, queries) for row in range(rows)]
    spans[1], spans[rows - 3] = (1400, queries), (LENGTH - queries, 1)
    prompt.check(uneven, spans, BOUND)
    prompt.check(uneven, [(64, 300), *spans, (1400, 60)], BOUND)
    prompt.check(uneven, [(row, 0) if row == 2 else span for row, span in enumerate(spans)], BOUND)


@pytest.mark.parametrize("prompt", by_layer({"": ()}), indirect=["prompt"])
def test_verifies_of_all_lengths_and_chunks_together(prompt: Prompt, ops: TritonOps) -> None:
    spans = [(0, 1), (1400, 5), (33, 2), (640, 17), (64, 300), (777, 1), (1000, 33), (1499, 1)]
    prompt.check(by(ops), spans)
    prompt.check(by(ops), spans[::-1])


TOGETHER = {
    "beside-a-prompt": ((*[1] * 100, 200), (*range(100, 500, 4), 260)),
    "uneven": ((*[1] * 50, 5), (*range(100, 300, 4), 1900)),
    "uneven-wide": ((1,) * 51, (*range(100, 300, 4), 1900)),
    "uneven-beside-a-prompt": ((*[1] * 50, 200, 1), (*range(100, 300, 4), 260, 1900)),
    "uneven-verifies-beside-a-prompt": ((*[3] * 50, 200, 1), (*range(100, 300, 4), 260, 1900)),
}
"""Query lengths and context lengths; with wide heads, the last program of a history joins its parts."""


@pytest.mark.parametrize("kind", TOGETHER)
def test_launches_that_run_at_the_same_time_change_no_bit(kind: str, ops: TritonOps) -> None:
    """Many decodes beside a prompt chunk, or histories in parts, in a chain of layers whose launches overlap, replayed as
    steps are."""
    if not ops.limits.overlaps:
        pytest.skip("launches overlap from compute capability 9.0 on")
    rng = torch.Generator("cuda").manual_seed(5)
    lengths, contexts = TOGETHER[kind]
    batch, blocks = scattered_batch(lengths, contexts, rng)
    heads, kv_heads, head_dim = (4, 2, 128) if kind.endswith("wide") else (9, 3, 64)
    angle = torch.arange(2048, device=rng.device)[:, None] / 10.0 ** torch.arange(head_dim // 2, device=rng.device)
    spec = AttentionSpec(torch.stack([angle.cos(), angle.sin()], dim=1), 0.125)
    norm = draw(rng, 576, dtype=BF16)
    queries, attended = (heads + 2 * kv_heads) * head_dim, heads * head_dim
    weights = [(draw(rng, queries, 576, dtype=BF16) / 24, draw(rng, 576, attended, dtype=BF16) / 24) for _ in range(6)]
    history = draw(rng, 2, blocks, 16, kv_heads, head_dim, dtype=BF16)

    def chain(which: TritonOps, x: Tensor, caches: Sequence[Tensor]) -> Tensor:
        rows = batch
        if which is ops and kind.startswith("uneven"):
            rows = which.divide_histories(batch, LayerCache(caches[0][0], caches[0][1]))
        for (qkv, output), cache in zip(weights, caches, strict=True):
            projected = which.norm_linear(x, norm, EPS, qkv, None)
            attended = which.rope_attention(projected, rows, LayerCache(cache[0], cache[1]), spec)
            x = which.linear_add(attended, output, None, x)
        return x

    limits = dataclasses.replace(ops.limits, capability=80)
    in_turn = dataclasses.replace(ops, limits=limits, dense=dataclasses.replace(ops.dense, limits=limits))
    inputs = torch.zeros(sum(lengths), 576, dtype=BF16, device=rng.device)
    caches = [history.clone() for _ in weights]
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        chain(ops, inputs.clone(), caches)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            result = chain(ops, inputs.clone(), caches)
    for _step in range(50):
        inputs.copy_(draw(rng, *inputs.shape, dtype=BF16))
        graph.replay()
        assert torch.equal(result, chain(in_turn, inputs.clone(), [history.clone() for _ in weights]))
