"""``kernels="reference"``: the same outputs from plain torch, operation by operation, without graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from exact_models import write_model
from random_checkpoint import RandomCheckpoint, llama

from draftline import LLM, SamplingParams
from draftline.engine.config import EngineConfig
from draftline.kernels import select_ops
from draftline.models.decoder import Decoder, EagerForward
from draftline.models.families import build_model
from draftline.models.scripted import ScriptedForward

CPU = torch.device("cpu")


def test_the_reference_runs_operation_by_operation() -> None:
    config = llama()
    for kernels, forward in (("auto", ScriptedForward), ("reference", EagerForward)):
        model = build_model(RandomCheckpoint(config, std=0.3), config, select_ops(CPU, kernels), torch.float32, CPU)
        assert isinstance(model, Decoder)
        assert isinstance(model._run, forward)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [("llama-576", "float32"), *(pytest.param(None, dtype, marks=pytest.mark.slow) for dtype in ("float32", "auto"))],
    ids=["a small model", "float32", "auto"],
)
def test_outputs_are_those_of_the_devices_own(shape: str | None, dtype: str, tmp_path: Path) -> None:
    """Of the embedded model, and by default of one with its layers' shape."""
    if shape is not None:
        write_model(tmp_path, shape)
    model = "smollm2" if shape is None else str(tmp_path)
    sampling = [SamplingParams(max_tokens=12, temperature=heat, seed=3, ignore_eos=True) for heat in (0.0, 0.8, 0.8)]
    # A fixed draft length: for an adaptive one each engine would first measure the cost of drafts.
    options: Any = {"device": "cpu", "dtype": dtype, "kv_cache_memory_gib": 0.1, "draft_length": "fixed"}
    texts = []
    for kernels in ("auto", "reference"):
        with LLM(model, kernels=kernels, **options) as llm:
            texts.append([o.outputs[0].token_ids for o in llm.generate(["The sky is", "One, two,", "Ah"], sampling)])
    assert texts[0] == texts[1]


def test_the_reference_has_no_graphs() -> None:
    assert EngineConfig().uses_graphs
    assert not EngineConfig(kernels="reference").uses_graphs
    assert not EngineConfig(enforce_eager=True).uses_graphs
