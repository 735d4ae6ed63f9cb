"""The base of the option models: the errors for unknown names, and the table of options that ``help()`` shows."""

from __future__ import annotations

import inspect
import pydoc
import subprocess
import sys

import pytest
from pydantic import ValidationError

from draftline.engine.config import EngineConfig
from draftline.engine.options import Options
from draftline.engine.params import Constraint, SamplingParams, Speculation
from draftline.engine.server.config import ServerConfig
from draftline.engine.training.config import TrainDraftConfig


@pytest.mark.parametrize(
    ("model", "name", "message"),
    [
        (EngineConfig, "max_num_seq", "max_num_seq: is not an option of EngineConfig; did you mean max_num_seqs?"),
        (EngineConfig, "max_batch_tokens", "did you mean max_batched_tokens?"),
        (EngineConfig, "swap_space", "Preempted requests are computed again"),
        (SamplingParams, "top_kk", "top_kk: is not an option of SamplingParams; did you mean top_k?"),
        (SamplingParams, "max_completion_tokens", r"did you mean max_tokens\?"),
        (SamplingParams, "stop_strings", r"did you mean stop\?"),
        (EngineConfig, "torch_dtype", r"did you mean dtype\?"),
        (EngineConfig, "rope_scaling", "rope_scaling: is not an option of EngineConfig "),
        (SamplingParams, "structured_outputs", r"Pass constraint=Constraint\(...\)"),
        (SamplingParams, "zzz", "zzz: is not an option of SamplingParams "),
        (Constraint, "regexp", "did you mean regex?"),
        (ServerConfig, "prot", "prot: is not an option of ServerConfig; did you mean port?"),
        (Speculation, "draft_token", "did you mean draft_tokens?"),
    ],
)
def test_an_unknown_name_is_one_error_with_the_closest_known_one(model: type[Options], name: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message) as caught:
        model(**{name: 1})
    assert caught.value.error_count() == 1


def test_vllms_spellings_are_accepted_where_they_mean_something() -> None:
    assert SamplingParams(top_k=-1).top_k == SamplingParams(top_k=0).top_k == 0
    assert SamplingParams(stop=None).stop == ()  # type: ignore[arg-type]
    assert SamplingParams(stop="a").stop == ("a",)
    assert SamplingParams(stop=["a", "b"], stop_token_ids=[1]).stop == ("a", "b")
    with pytest.raises(ValidationError, match="top_k"):
        SamplingParams(top_k=-2)


@pytest.mark.parametrize("kind", ["json_schema", "structural_tag"])
def test_json_of_a_constraint_may_be_a_dict(kind: str) -> None:
    assert Constraint(**{kind: {"é": [1]}}) == Constraint(**{kind: '{"é": [1]}'})
    with pytest.raises(ValidationError, match=f"{kind}\n.*is no JSON: Object of type object is not JSON serializable"):
        Constraint(**{kind: {"a": object()}})


@pytest.mark.parametrize(
    "model", [SamplingParams, Speculation, Constraint, EngineConfig, ServerConfig, TrainDraftConfig]
)
def test_help_lists_every_option_with_its_meaning(model: type[Options]) -> None:
    text = " ".join(pydoc.plain(pydoc.render_doc(model)).replace("|", " ").split())
    for name, field in model.model_fields.items():
        assert field.description is not None
        assert f" {name}: " in text
        assert " ".join(field.description.replace("|", " ").split()) in text


def test_the_signature_has_names_and_defaults() -> None:
    assert str(inspect.signature(Speculation)) == "(*, enabled=None, draft_tokens=None)"


def test_the_table_has_types_defaults_and_bounds() -> None:
    assert EngineConfig.__doc__ is not None
    assert "    max_num_seqs: int = 256\n        max outputs generated at once (1 to 4096)\n" in EngineConfig.__doc__
    assert "    kv_cache_dtype: 'auto' | 'bfloat16' | 'fp8' | 'int8' = 'auto'\n" in EngineConfig.__doc__
    assert (
        "\n    block_size: int = 16\n        tokens per cache block (8 to 256, a multiple of 8)\n"
        in EngineConfig.__doc__
    )
    assert SamplingParams.__doc__ is not None
    assert "    stop: Sequence[str]\n" in SamplingParams.__doc__
    assert "    logit_bias: dict[int, float]\n" in SamplingParams.__doc__
    assert "(at least 1)" in SamplingParams.__doc__  # max_tokens: the upper bound is that of its 32 bits


def test_option_models_load_neither_torch_nor_difflib() -> None:
    code = "import sys, draftline.engine.config; assert not {'torch', 'difflib'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
