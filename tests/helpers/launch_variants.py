"""Prints the kernels that steps launch by operation, and that are neither in a graph nor compiled behind the start: each
would be compiled while a step waits. Constraints are left out.

    python tests/helpers/launch_variants.py qwen3 256 4 640

Arguments: a shape of `SHAPES`, the most rows, the most drafts a row, the longest context. A program of its own, since tests
interpret kernels, and these launches are captured as the compiler would get them. Nothing is computed: all tensors are on
the meta device, and the engine's own passes launch what they launch.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftline.engine.params import SamplingParams
from draftline.engine.request.sequence import Row, Sequence
from draftline.engine.runner import eager, warmup
from draftline.engine.runner.executor import ExecutorParts
from draftline.engine.runner.graphs import executor, step_graphs
from draftline.engine.runner.shapes import StepShapes, launch_bound_tokens
from draftline.engine.runner.timing import StepClock
from draftline.kernels.batch import KVCache
from draftline.kernels.constraints import ConstraintTable
from draftline.kernels.slots import SamplingFeatures, SlotTable
from draftline.kernels.triton.compile.aot import Launch, captured_launches
from draftline.kernels.triton.device import DeviceLimits
from draftline.kernels.triton.ops import TritonOps
from draftline.models.brief import BriefModel
from draftline.models.config import ModelConfig
from draftline.models.families import build_model, config_from_hf, weight_shapes
from draftline.quant.tensor import RawTensor
from draftline.spec.no_drafter import NoDrafter

META = torch.device("meta")
STEP_TOKENS = 8192


def _llama(kind: str, heads: int, kv_heads: int, head_dim: int, hidden: int, inner: int, vocab: int) -> dict[str, Any]:
    return {
        "architectures": [f"{kind}ForCausalLM"], "model_type": kind.lower(), "num_hidden_layers": 2,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim, "hidden_size": hidden,
        "intermediate_size": inner, "vocab_size": vocab, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
        "rope_theta": 1e6, "hidden_act": "silu", "tie_word_embeddings": True, "eos_token_id": 2, "bos_token_id": 1,
    }  # fmt: skip


SHAPES = {
    "llama-8b": _llama("Llama", 32, 8, 128, 4096, 14336, 128256),
    "qwen3": _llama("Qwen3", 16, 8, 128, 1024, 3072, 151936),
    "smollm2": _llama("Llama", 9, 3, 64, 576, 1536, 49152),
}
"""One layer of each: the others launch the same."""


class _Checkpoint:
    """A model's weights without their values."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self._shapes = weight_shapes(config)

    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    def tensor(self, name: str) -> RawTensor:
        shape = self._shapes[name]
        return RawTensor(name, "BF16", shape, torch.empty(shape, dtype=torch.bfloat16, device=META))


class _Recorder:
    """A `Recorder` that launches what it would record."""

    def separate(self) -> _Recorder:
        return self

    def record(self, work: Callable[[], Any]) -> tuple[None, Any]:
        return None, work()


class _InputGraph:
    """An `InputGraph` that launches what it would record."""

    def __init__(self, words: int, device: torch.device) -> None:
        self.tensor = torch.empty(words, dtype=torch.int64, device=META)

    def record(self, recorder: _Recorder, work: Callable[[], Any]) -> Any:
        return recorder.record(work)[1]


class _WritingInputGraph(_InputGraph):
    """A `WritingInputGraph` likewise."""

    def __init__(self, words: int, write_words: int, out: Tensor) -> None:
        super().__init__(words, META)


def _upload(values: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(values).to(META)


def _sequence(prompt_len: int, sampling: SamplingParams = SamplingParams()) -> Sequence:
    return Sequence("", 0, [], prompt_len, sampling, 0, prompt_len + 100, 0.0)


def steps(
    rng: random.Random, shapes: StepShapes, max_rows: int, drafts: int, max_len: int
) -> Iterator[tuple[Row, ...]]:
    """Steps without a graph: decodes, verifies, and pieces of prompts of all lengths, as planners make them.

    Where a step has a graph, one prompt's log-probabilities are wanted, which no graph has.
    """
    while True:
        decodes = min(rng.choice((0, 1, 2, 3, 5, 9, 17, 33, rng.randrange(max_rows))), max_rows - 1)
        most = drafts if decodes <= shapes.max_drafting_rows else 0
        rows: list[Row] = []
        for slot in range(decodes):
            known, count = rng.randrange(1, max_len - drafts - 1), rng.randint(0, most)
            rows.append(Row(_sequence(1), slot, known - 1, 1, known, count, count + 1))
        left = STEP_TOKENS - sum(row.count + row.drafts for row in rows)
        shortest, longest = rng.choice(((100, max_len - 1), (1, 40), (1, max_len - 1)))
        for slot in range(decodes, rng.randint(decodes + 1, max_rows)):
            length = rng.randint(shortest, longest)
            count = min(length, left)
            if count:
                rows.append(Row(_sequence(length), slot, 0, count, length, 0, int(count == length)))
            left -= count
        if shapes.of_step(tuple(rows)) is not None and len(rows) > decodes:
            rows[-1].sequence = _sequence(rows[-1].known, SamplingParams(prompt_logprobs=0))
        if shapes.of_step(tuple(rows)) is None:
            yield tuple(rows)


def unforeseen(shape: str, max_rows: int, drafts: int, max_len: int, count: int) -> tuple[set[Launch], set[Launch]]:
    """The launches of ``count`` steps by operation, and those of them that a start does not compile."""
    results = SimpleNamespace(deliver=lambda *copied: None, settle=lambda: None)
    stand_ins = {
        "InputGraph": _InputGraph, "WritingInputGraph": _WritingInputGraph, "ResultStages": lambda *_: results,
        "unowned": lambda tensor: tensor,
    }  # fmt: skip
    for name, stand_in in stand_ins.items():
        setattr(executor, name, stand_in)
        setattr(step_graphs, name, stand_in)
    eager.upload = _upload  # type: ignore[attr-defined]
    config = config_from_hf(SHAPES[shape])
    ops = TritonOps.sized(DeviceLimits.known(90, 132))
    model = build_model(_Checkpoint(config), config, ops, torch.bfloat16, META)
    cache = KVCache.allocate(
        config.num_layers, 64, 16, config.num_kv_heads, config.head_dim, dtype=torch.bfloat16, device=META
    )
    table = SlotTable.allocate(max_rows, max_len + drafts, -(-(max_len + drafts) // 16), META)
    constraints = ConstraintTable.allocate(
        max_rows, config.vocab_size, words=1024, masks=64, samples=drafts + 1, device=META
    )
    shapes = StepShapes(max_rows, drafts, launch_bound_tokens(config), max_len)
    clock = StepClock.of(ops, META)
    parts = ExecutorParts(model, cache, table, ops, NoDrafter(), ops.sample, ops.accept, constraints, shapes, clock)
    foreseen: dict[Launch, None] = {}
    brief = replace(parts, model=BriefModel(model))
    with captured_launches(foreseen):
        warmup.launch_graphs(brief, _Recorder())  # type: ignore[arg-type]
        warmup.launch_further_sampling(brief, _Recorder())  # type: ignore[arg-type]
        warmup.launch_short_chunks(brief)
    by_operation = eager.EagerExecutor(parts)
    every = (SamplingFeatures.NONE, SamplingFeatures.TEMPERATURE, *warmup.FURTHER_FEATURES)
    rng = random.Random(0)
    drawn = steps(rng, shapes, max_rows, drafts, max_len)
    launched: dict[Launch, None] = {}
    with captured_launches(launched):
        for _ in range(count):
            rows = next(drawn)
            forward = by_operation.forward(rows)
            features = rng.choice([each for each in every if SamplingFeatures.MASK not in each])
            samples = by_operation.sample(rows, forward, features)
            deciding = torch.empty(len(samples.tokens), dtype=torch.int64, device=META)
            if len(deciding):
                ops.logprobs(forward.logits[deciding], samples.tokens, rng.choice(warmup.FURTHER_LOGPROBS))
    return set(launched), launched.keys() - foreseen.keys()


def main(shape: str, *sizes: str) -> None:
    """Print them, a line each, after how many there are in all."""
    with torch.inference_mode():
        launched, new = unforeseen(shape, *map(int, sizes), count=200)
    print(len(launched))
    for launch in sorted(new, key=str):
        aligned = [name for place, (name, _) in enumerate(launch.signature) if place in launch.aligned]
        print(launch.kernel, launch.variant, "aligned:", *aligned)


if __name__ == "__main__":
    main(*sys.argv[1:])
