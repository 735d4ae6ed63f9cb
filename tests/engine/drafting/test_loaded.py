"""Which drafter a head becomes: behind lookup or alone, and always with the tokens that constraints force first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from random_checkpoint import RandomCheckpoint
from tiny import CONFIG
from tiny_head import head_fields, random_weights, tiny_head, write_head

from draftline.engine.config import EngineConfig
from draftline.engine.drafting.loaded import LoadedHead, _worthwhile_ranks, load_draft
from draftline.kernels.collectives import Alone
from draftline.kernels.constraints import ConstraintTable
from draftline.kernels.reference.ops import ReferenceOps
from draftline.models.errors import ModelLoadError
from draftline.models.heads.config import head_config
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
    assert isinstance(made, ForcedFirst) == (drafter == "auto"), "a head alone drafts forced tokens itself"
    assert made.keeps_cache
    assert made.sink.layers == loaded.read_layers != ()


def test_a_head_is_rank_zeros_alone(tmp_path: Path) -> None:
    fields = head_fields()
    write_head(tmp_path, fields, random_weights(head_config(fields, "head", CONFIG)))
    target, device = RandomCheckpoint(CONFIG, std=0.3), torch.device("cpu")
    second = Alone()
    second.rank, second.size = 1, 2
    config = EngineConfig(model="target", draft_model=str(tmp_path), tensor_parallel_size=2)
    assert load_draft(config, target, ReferenceOps(), torch.float32, device) is not None
    assert load_draft(config, target, ReferenceOps(), torch.float32, device, second) is None
    shared = config.model_copy(update={"draft_tensor_parallel_size": 2})
    with pytest.raises(ModelLoadError, match=r"draft_tensor_parallel_size: .* is a head, which is not shared"):
        load_draft(shared, target, ReferenceOps(), torch.float32, device)


def test_a_head_of_another_kind_is_refused_as_a_head(tmp_path: Path) -> None:
    """Those of EAGLE and EAGLE-2 have a Llama model's config.json, and no norms before their layer."""
    fields = head_fields(architectures=["LlamaForCausalLM"])
    del fields["draft_vocab_size"]
    write_head(tmp_path, fields, {"fc.weight": torch.zeros(32, 64), "fc.bias": torch.zeros(32)})
    config = EngineConfig(model="target", draft_model=str(tmp_path))
    with pytest.raises(ModelLoadError, match=r"fc\.weight: this is a head, but no EAGLE-3 head, .*no draft_vocab_size"):
        load_draft(config, RandomCheckpoint(CONFIG, std=0.3), ReferenceOps(), torch.float32, torch.device("cpu"))


@pytest.mark.parametrize(
    ("device", "inner", "size", "ranks"),
    [
        ("cuda", 1 << 18, 2, 2),
        ("cuda", 64, 2, 1),
        ("cpu", 1 << 18, 2, 1),
        ("cuda", 1 << 18, 1, 1),
        ("cuda", 1 << 18, 16, 1),
    ],
)
def test_gpus_share_a_draft_model_of_large_layers(device: str, inner: int, size: int, ranks: int) -> None:
    checkpoint = RandomCheckpoint(replace(CONFIG, intermediate_size=inner), std=0.3)
    assert _worthwhile_ranks(checkpoint, torch.bfloat16, torch.device(device), size) == ranks
