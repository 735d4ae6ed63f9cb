"""A machine without a GPU needs no Triton, which torch's builds for CPUs do not bring."""

from __future__ import annotations

import pytest
from uninterpreted import run

PROGRAM = """
import sys
sys.modules["triton"] = None  # its import fails
from draftline.engine.build import build_core
from draftline.engine.config import EngineConfig
import draftline.engine.cli.serve, draftline.engine.training.train_head
core = build_core(EngineConfig(model="smollm2", draft_model="smollm2-head", max_model_len=64, max_num_seqs=1))
print(core.info.device)
core.close()
"""


@pytest.mark.long
def test_an_engine_starts_without_triton() -> None:
    done = run("-c", PROGRAM, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "cpu"
