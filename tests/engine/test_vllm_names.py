"""vLLM's names of options: the same table for Python, the command line, YAML and the documentation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from byte_compilers import byte_compiler
from fake_engine import ByteTokenizer, fake_info
from pydantic import ValidationError
from typer.testing import CliRunner

from draftline.engine.cli import app
from draftline.engine.cli.config_file import read_config_file
from draftline.engine.cli.options import CONFIGURATIONS
from draftline.engine.config import EngineConfig
from draftline.engine.errors import UsageError
from draftline.engine.params import SamplingParams
from draftline.engine.protocol import GenerateRequest
from draftline.engine.request.keywords import as_request
from draftline.engine.request.request import RequestBuilder
from draftline.engine.vllm_names import CALL_FOREIGN

MODELS = (*CONFIGURATIONS, SamplingParams)


@pytest.mark.parametrize("model", MODELS)
def test_the_tables_name_options_that_exist_and_others_that_do_not(model: type[EngineConfig]) -> None:
    assert set(model.aliases.values()) <= set(model.model_fields)
    assert not model.model_fields.keys() & {*model.aliases, *model.foreign}
    assert not model.aliases.keys() & model.foreign.keys()
    assert model.foreign


def test_python_takes_them() -> None:
    config = EngineConfig.model_validate({"max_num_batched_tokens": 64, "enable_prefix_caching": False, "seed": 7})
    assert (config.max_batched_tokens, config.prefix_caching, config.default_seed) == (64, False, 7)
    with pytest.raises(ValidationError, match="is set twice"):
        EngineConfig.model_validate({"max_num_batched_tokens": 64, "max_batched_tokens": 64})
    with pytest.raises(ValidationError, match="less than or equal"):
        EngineConfig.model_validate({"seed": 2**64})


@pytest.mark.parametrize("model", MODELS)
def test_what_there_is_not_is_refused_with_a_substitute(model: type[EngineConfig]) -> None:
    for name, instead in model.foreign.items():
        with pytest.raises(ValidationError) as refused:
            model.model_validate({name: 1})
        assert f"{name}: is not an option of {model.__name__}. {instead}" in str(refused.value)


@pytest.mark.parametrize("name", CALL_FOREIGN)
def test_keywords_of_calls_are_refused_with_a_substitute(name: str) -> None:
    options: Any = {name: None}
    with pytest.raises(TypeError) as refused:
        as_request("abc", None, None, options)
    assert str(refused.value) == f"unexpected keyword argument {name!r}. {CALL_FOREIGN[name]}"


def test_a_file_takes_them(tmp_path: Path) -> None:
    path = tmp_path / "draftline.yaml"
    path.write_text("max-num-batched-tokens: 64\nssl_certfile: a.pem\n")
    assert read_config_file(path, CONFIGURATIONS) == {"max_batched_tokens": 64, "tls_cert": "a.pem"}
    path.write_text("max_num_batched_tokens: 64\nmax_batched_tokens: 64\n")
    with pytest.raises(UsageError, match="max_batched_tokens: is set twice"):
        read_config_file(path, CONFIGURATIONS)
    path.write_text("pipeline_parallel_size: 2\n")
    with pytest.raises(UsageError, match=r"is not an option\. A model is divided by tensors alone"):
        read_config_file(path, CONFIGURATIONS)


def test_the_command_line_takes_them() -> None:
    both = ["info", "--max-num-batched-tokens", "8", "--max-batched-tokens", "8"]
    result = CliRunner().invoke(app, both)
    assert (result.exit_code, result.stderr) == (
        2,
        "draftline: error: --max-batched-tokens and --max-num-batched-tokens: set one of them\n",
    )
    for name, value in (("max-num-batched-tokens", "0"), ("seed", "-1")):
        refused = CliRunner().invoke(app, ["info", f"--{name}", value])
        assert "greater than or equal to" in refused.stderr
    assert CliRunner().invoke(app, ["serve", "--no-enable-prefix-caching", "--port", "-1"]).exit_code == 2


def test_the_documentation_has_both_tables() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/from-vllm.md").read_text()
    for model in MODELS:
        for name, own in model.aliases.items():
            assert f"| `{name}` | `{own}` |" in page
    for foreign in (*(model.foreign for model in MODELS), CALL_FOREIGN):
        for name, instead in foreign.items():
            assert any(f"`{name}`" in line and line.endswith(f"| {instead} |") for line in page.splitlines()), name


def test_a_default_seed_seeds_the_requests_without_one() -> None:
    def seeds(default: int | None) -> list[int]:
        builder = RequestBuilder(fake_info(), ByteTokenizer(), 5.0, byte_compiler(), default)  # type: ignore[arg-type]
        asked = (None, 5, None)
        return [
            builder.prepare(str(seed), GenerateRequest("a", SamplingParams(seed=seed, max_tokens=1))).request.seed
            for seed in asked
        ]

    first, own, second = seeds(7)
    assert own == 5
    assert first != second
    assert seeds(7) == [first, own, second]
    assert seeds(8) != [first, own, second]
    assert seeds(None) != seeds(None)
