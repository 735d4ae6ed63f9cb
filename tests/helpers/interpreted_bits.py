"""Digests of what interpreted kernels compute: ``python interpreted_bits.py plain|hastened``, as JSON."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable

import torch
from interpreter import hasten
from known_prompt import Layer, make_prompt
from torch import Tensor

from draftline.kernels.slots import SampleRows, SamplingFeatures, SlotTable
from draftline.kernels.triton.device import DeviceLimits
from draftline.kernels.triton.ops import TritonOps

OPS = TritonOps.sized(DeviceLimits.known(80, 132))
CPU = torch.device("cpu")
LAYERS = (
    Layer(3, 1, 32),
    Layer(1, 1, 80, cache=torch.int8),
    Layer(2, 1, 16, window=21, soft_cap=3.0, cache=torch.float8_e4m3fn),
)


def attention(layer: Layer, rng: torch.Generator) -> Iterable[Tensor]:
    """A prompt in one chunk, then some of its tokens as decodes and verifies."""
    prompt = make_prompt(layer, 41, OPS.rope_attention, rng)
    batch = prompt.batch([(40, 1), (20, 4), (33, 1)])
    yield prompt.expected
    yield OPS.rope_attention(prompt.qkv[batch.positions], batch, prompt.layer, prompt.spec)


def layers(dtype: torch.dtype, rng: torch.Generator) -> Iterable[Tensor]:
    """Linear layers of few and of many rows, with all that is fused to them."""

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng).to(dtype)

    weight, norm, bias = draw(48, 90) / 18, draw(90), draw(48)
    for rows in (1, 20, 70):
        x = draw(rows, 90)
        yield OPS.linear(x, weight, None)
        yield OPS.norm_linear(x, norm, 1e-5, weight, bias)
        yield OPS.norm_swiglu(x, norm, 1e-5, weight, bias)
        yield OPS.linear_add(x, weight, bias, draw(rows, 48))
        yield OPS.gelu(x)


def sampling(rng: torch.Generator) -> Iterable[Tensor]:
    """Tokens by most features, and log-probabilities."""
    table = SlotTable.allocate(4, 64, 4, CPU, 2100)
    table.tokens.copy_(torch.randint(0, 2100, table.tokens.shape, generator=rng))
    table.seed.copy_(torch.randint(-(2**62), 2**62, (4,), generator=rng))
    table.prompt_lens.fill_(7)
    for name, values in {
        "temperature": [0, 0.5, 1, 1.5], "top_k": [0, 50, 5, 0], "top_p": [1, 0.9, 0.9, 0.5],
        "min_p": [0, 0, 0.01, 0], "repetition_penalty": [1, 1.2, 1, 0.7], "frequency_penalty": [1, 0, 0.3, 1],
    }.items():  # fmt: skip
        getattr(table, name).copy_(torch.tensor(values))
    logits = torch.randn(4, 2100, generator=rng) * 3
    features = SamplingFeatures.TEMPERATURE | SamplingFeatures.TOP_K | SamplingFeatures.TOP_P | SamplingFeatures.MIN_P
    rows = SampleRows(torch.arange(4), torch.tensor([15, 30, 9, 40]), features | SamplingFeatures.PENALTIES, None)
    yield OPS.sample(logits.clone(), rows, table)
    yield from OPS.logprobs(logits, torch.tensor([1, 5, 9, 2000]), 5)


def digest(tensors: Iterable[Tensor]) -> str:
    """Of all bytes of the tensors."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def main(way: str) -> None:
    """Print them."""
    if way == "hastened":
        hasten()
    work: dict[str, Callable[[torch.Generator], Iterable[Tensor]]] = {
        **{f"{layer}": lambda rng, layer=layer: attention(layer, rng) for layer in LAYERS},
        **{f"{dtype}": lambda rng, dtype=dtype: layers(dtype, rng) for dtype in (torch.float32, torch.float16)},
        "sampling": sampling,
    }
    print(json.dumps({name: digest(tensors(torch.Generator().manual_seed(3))) for name, tensors in work.items()}))


if __name__ == "__main__":
    main(sys.argv[1])
