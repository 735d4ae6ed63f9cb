"""Which options leave it to the engine to draft with the embedded model's head."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from draftline.engine.config import EngineConfig
from draftline.engine.drafting.build import with_embedded_draft

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_a_gpu_drafts_for_the_embedded_model_with_its_head() -> None:
    assert with_embedded_draft(EngineConfig(model="smollm2"), GPU).draft_model == "smollm2-head"


@pytest.mark.parametrize(
    ("options", "device"),
    [
        ({"model": "smollm2"}, CPU),
        ({"model": "./Llama"}, GPU),
        ({"model": "smollm2", "drafter": "none"}, GPU),
        ({"model": "smollm2", "drafter": "ngram"}, GPU),
        ({"model": "smollm2", "draft_model": "smollm2-draft"}, GPU),
    ],
    ids=["cpu", "other-model", "no-drafts", "other-drafter", "other-draft"],
)
def test_other_options_stay_as_they_are(options: dict[str, Any], device: torch.device) -> None:
    config = EngineConfig(**options)
    assert with_embedded_draft(config, device) is config
