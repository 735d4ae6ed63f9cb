"""`EngineConfig`: options that make no sense together are refused, and the one that is wrong is named."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from draftline.engine.config import EngineConfig


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drafter": "draft_model"}, "drafter: draft_model needs to be told which"),
        ({"drafter": "ngram", "draft_model": "m"}, "draft_model: it would not be used, since drafter is ngram"),
        ({"draft_quantization": "fp8"}, "draft_quantization: there is no draft model to convert to fp8"),
        ({"draft_quantization": "int3", "draft_model": "m"}, "draft_quantization"),
        ({"ngram_entries": 1000}, "1000 is no power of two"),
    ],
    ids=lambda value: None if isinstance(value, str) else "-".join(value),
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        EngineConfig(**options)


def test_a_draft_model_may_be_quantized() -> None:
    assert EngineConfig(draft_model="m", draft_quantization="fp8").draft_quantization == "fp8"
