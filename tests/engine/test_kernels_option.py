"""``kernels="reference"``: the same outputs from plain torch, operation by operation, without graphs."""

from __future__ import annotations

import pytest
import torch
from random_checkpoint import RandomCheckpoint, llama

from draftline import LLM, SamplingParams
from draftline.engine.config import EngineConfig
from draftline.kernels import select_ops
from draftline.models.decoder import Decoder, EagerForward
from draftline.models.scripted import ScriptedForward

CPU = torch.device("cpu")


def test_the_reference_runs_operation_by_operation() -> None:
    config = llama()
    for kernels, forward in (("auto", ScriptedForward), ("reference", EagerForward)):
        model = Decoder(RandomCheckpoint(config, std=0.3), config, select_ops(CPU, kernels), torch.float32, CPU)
        assert isinstance(model._run, forward)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("auto", marks=pytest.mark.slow)])
def test_outputs_are_those_of_the_devices_own(dtype: str) -> None:
    sampling = [SamplingParams(max_tokens=12, temperature=heat, seed=3, ignore_eos=True) for heat in (0.0, 0.8, 0.8)]
    texts = []
    for kernels in ("auto", "reference"):
        with LLM("smollm2", device="cpu", dtype=dtype, kernels=kernels, kv_cache_memory_gib=0.1) as llm:  # type: ignore[arg-type]
            texts.append([o.outputs[0].token_ids for o in llm.generate(["The sky is", "One, two,", "Ah"], sampling)])
    assert texts[0] == texts[1]


def test_the_reference_has_no_graphs() -> None:
    assert EngineConfig().uses_graphs
    assert not EngineConfig(kernels="reference").uses_graphs
    assert not EngineConfig(enforce_eager=True).uses_graphs
