"""Which drafter a head becomes: behind lookup or alone, and always with the tokens that constraints force first."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from byte_tokenizer import VOCAB, write_byte_model
from random_checkpoint import RandomCheckpoint
from safetensors.torch import save_file
from tiny import CONFIG
from tiny_head import head_fields, random_weights, tiny_head, write_head

from draftline import LLM, SamplingParams
from draftline.engine.config import EngineConfig
from draftline.engine.drafting.loaded import LoadedDraftModel, LoadedHead, _worthwhile_ranks, load_draft
from draftline.kernels.collectives import Alone
from draftline.kernels.constraints import ConstraintTable
from draftline.kernels.reference.ops import ReferenceOps
from draftline.models.errors import ModelLoadError
from draftline.models.families import config_from_hf, weight_shapes
from draftline.models.heads.config import head_config
from draftline.models.loader import open_checkpoint
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


def byte_model(folder: Path, vocab_size: int, special: str = "<|end|>") -> Path:
    """A model of one seed in each size: the larger has rows of zeros behind those of the smaller."""
    folder.mkdir()
    write_byte_model(folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"vocab_size": vocab_size}))
    tokenizer = folder / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace("<|end|>", special))
    shapes = weight_shapes(config_from_hf(json.loads(path.read_text()), "config.json"))
    weights = {name: torch.zeros(shape) for name, shape in shapes.items()}
    smallest = RandomCheckpoint(config_from_hf(json.loads(path.read_text()) | {"vocab_size": VOCAB}, ""), std=0.3)
    for name, weight in weights.items():
        data = smallest.tensor(name).data
        weight[: len(data)] = data
    save_file(weights, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(("drafts", "targets"), [(320, 264), (264, 320)], ids=["more", "less"])
def test_a_draft_model_may_have_other_padding_than_its_target(tmp_path: Path, drafts: int, targets: int) -> None:
    """Such as Qwen2.5-0.5B, which has 151,936 rows, for Qwen2.5-7B, which has 152,064."""
    target, draft = byte_model(tmp_path / "target", targets), byte_model(tmp_path / "draft", drafts)
    prompts, params = ["one two", "three"], SamplingParams(temperature=0.7, seed=3, max_tokens=24)
    found = []
    for options in ({"drafter": "none"}, {"draft_model": str(draft), "drafter": "draft_model", "draft_tokens": 3}):
        with LLM(str(target), dtype="float32", kv_cache_memory_gib=0.05, **options) as llm:
            answers = llm.generate(prompts, params, use_tqdm=False)
            found.append([answer.outputs[0].token_ids for answer in answers])
    assert found[0] == found[1]
    config = EngineConfig(model=str(target), draft_model=str(draft))
    loaded = load_draft(config, open_checkpoint(str(target)), ReferenceOps(), torch.float32, torch.device("cpu"))
    assert isinstance(loaded, LoadedDraftModel)
    assert loaded._model.config.vocab_size == targets


def test_a_draft_model_of_another_size_needs_its_target_s_tokens(tmp_path: Path) -> None:
    target, other = byte_model(tmp_path / "target", 264), byte_model(tmp_path / "other", 320, special="<|over|>")
    bare = byte_model(tmp_path / "bare", 320)
    (bare / "tokenizer.json").unlink()
    for draft, reason in ((other, "and their tokenizers have different tokens"), (bare, "and its tokenizer must show")):
        config = EngineConfig(model=str(target), draft_model=str(draft))
        message = rf"draft_model: .* has a vocabulary of 320 tokens and .* one of 264: .*, {reason}"
        with pytest.raises(ModelLoadError, match=message):
            load_draft(config, open_checkpoint(str(target)), ReferenceOps(), torch.float32, torch.device("cpu"))


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
