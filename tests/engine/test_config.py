"""`EngineConfig`: options that make no sense together are rejected by name; its keywords for type checkers agree with it."""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest
from pydantic import ValidationError

from draftline.engine.config import EngineConfig, EngineOptions, without_drafts


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drafter": "draft_model"}, "drafter: 'draft_model' needs the name of one"),
        ({"drafter": "ngram", "draft_model": "m"}, "draft_model: is not used where drafter is ngram"),
        ({"draft_quantization": "fp8"}, "draft_quantization: there is no draft model to convert to fp8"),
        ({"draft_quantization": "int3", "draft_model": "m"}, "draft_quantization"),
        ({"draft_tensor_parallel_size": 2}, "draft_tensor_parallel_size: there is no draft model to share"),
        (
            {"draft_tensor_parallel_size": 2, "draft_model": "m", "tensor_parallel_size": 4},
            "draft_tensor_parallel_size: 2 is neither 1 nor tensor_parallel_size, which is 4",
        ),
        ({"ngram_entries": 1000}, "1000 is not a power of two"),
        ({"ngram_entries": 1024}, "ngram_entries: has no effect where drafter is auto"),
        ({"ngram_entries": 1024, "drafter": "ngram"}, "ngram_entries: has no effect where drafter is ngram"),
        ({"draft_tokens": 4, "drafter": "none"}, "draft_tokens: has no effect where drafter is none"),
        ({"draft_length": "fixed", "drafter": "none"}, "draft_length: has no effect where drafter is none"),
        ({"draft_length": "fixed", "drafter": "forced"}, "draft_length: has no effect where drafter is forced"),
        (
            {"gpu_memory_utilization": 0.9, "kv_cache_memory_gib": 4},  # the default, too
            "gpu_memory_utilization: has no effect where kv_cache_memory_gib is set",
        ),
        ({"synthetic_acceptance": 0.5, "drafter": "none"}, "synthetic_acceptance: there are no drafts to accept"),
        ({"synthetic_acceptance": 0.5, "drafter": "forced"}, "synthetic_acceptance: there are no drafts to accept"),
    ],
    ids=lambda value: None if isinstance(value, str) else "-".join(value),
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        EngineConfig(**options)


def test_the_options_of_drafts_go_with_them() -> None:
    given = {"model": "m", "draft_model": "d", "drafter": "draft_model", "draft_tokens": 3, "synthetic_acceptance": 0.5}
    assert without_drafts(given | {"block_size": 8}) == {"model": "m", "block_size": 8, "drafter": "none"}
    drafting = {name for name in EngineConfig.model_fields if name.startswith(("draft", "ngram", "synthetic"))}
    assert without_drafts(dict.fromkeys(drafting)) == {"drafter": "none"}


def test_a_draft_model_may_be_quantized() -> None:
    assert EngineConfig(draft_model="m", draft_quantization="fp8").draft_quantization == "fp8"


def test_the_typed_keywords_are_the_models_fields() -> None:
    fields = {name: field.annotation for name, field in EngineConfig.model_fields.items() if name != "model"}
    assert get_type_hints(EngineOptions) == fields
    assert not EngineOptions.__required_keys__
