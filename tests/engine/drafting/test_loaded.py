"""Which drafter a head becomes: behind lookup or alone, and always with the tokens that constraints force first."""

from __future__ import annotations

import pytest
import torch
from tiny import CONFIG
from tiny_head import tiny_head

from draftline.engine.config import EngineConfig
from draftline.engine.drafting.loaded import LoadedHead
from draftline.kernels.constraints import ConstraintTable
from draftline.kernels.reference.ops import ReferenceOps
from draftline.spec.forced import ForcedFirst


@pytest.mark.parametrize(("drafts_at_once", "name"), [(1, "eagle3"), (4, "parallel_head")])
@pytest.mark.parametrize(("drafter", "before"), [("auto", "ngram+"), ("draft_model", "")])
def test_a_head_drafts_behind_lookup_unless_it_is_asked_for_alone(
    drafter: str, before: str, drafts_at_once: int, name: str
) -> None:
    config = EngineConfig.model_validate({"model": "target", "draft_model": "head", "drafter": drafter})
    constraints = ConstraintTable.allocate(
        4, CONFIG.vocab_size, words=64, masks=4, samples=5, device=torch.device("cpu")
    )
    loaded = LoadedHead(tiny_head(parallel_drafts=drafts_at_once))
    made = loaded.build(config, 8, ReferenceOps(), constraints)
    assert made.name == before + name
    assert isinstance(made, ForcedFirst)
    assert made.keeps_cache
    assert made.sink.layers == loaded.read_layers != ()
