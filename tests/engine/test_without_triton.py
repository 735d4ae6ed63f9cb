"""A machine without a GPU needs no Triton, which torch's builds for CPUs do not bring."""

from __future__ import annotations

from pathlib import Path

import pytest
from exact_models import SHAPES, write_model
from tiny_head import head_fields, random_weights, write_head
from uninterpreted import run

from draftline.models.families import config_from_hf
from draftline.models.heads.config import head_config

PROGRAM = """
import sys
sys.modules["triton"] = None  # its import fails
from draftline.engine.build import build_core
from draftline.engine.config import EngineConfig
import draftline.engine.cli.serve, draftline.engine.training.train_head
core = build_core(EngineConfig(model=sys.argv[1], draft_model=sys.argv[2], max_model_len=64, max_num_seqs=1))
print(core.info.device)
core.close()
"""


@pytest.mark.long
def test_an_engine_starts_without_triton(tmp_path: Path) -> None:
    write_model(tmp_path, "llama-64")
    target = config_from_hf(SHAPES["llama-64"])
    fields = head_fields(target, head_dim=32)
    head = write_head(tmp_path / "head", fields, random_weights(head_config(fields, "head", target)))
    done = run("-c", PROGRAM, str(tmp_path), str(head), CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "cpu"
