from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from byte_tokenizer import write_byte_model

from draftline import LLM, SamplingParams
from draftline.engine.config import EngineConfig
from draftline.engine.drafting import build
from draftline.engine.drafting.cost_cache import cached_costs
from draftline.engine.drafting.costs import Costs, measure_costs

SHAPES = [(1, 0), (1, 2), (8, 0), (8, 2)]
COSTS: Costs = {shape: 0.001 + 1 / 3 * index for index, shape in enumerate(SHAPES)}
FACTS = ("a device", "a model")
WEEK_S = 7 * 24 * 3600


class Measure:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> Costs:
        self.calls += 1
        return COSTS


def measures(folder: Path | None, config: EngineConfig | None = None, facts: tuple[str, ...] = FACTS) -> int:
    """How often an engine that starts now measures."""
    measure = Measure()
    assert cached_costs(config or EngineConfig(), facts, folder, SHAPES, measure) == COSTS
    return measure.calls


def test_the_second_engine_does_not_measure(tmp_path: Path) -> None:
    assert [measures(tmp_path) for _ in range(3)] == [1, 0, 0]
    assert measures(tmp_path, EngineConfig(model="another name", default_seed=1)) == 0


def test_without_a_folder_every_engine_measures() -> None:
    assert [measures(None) for _ in range(2)] == [1, 1]


@pytest.mark.parametrize(
    "other",
    [
        lambda folder: measures(folder, facts=("another device", "a model")),
        lambda folder: measures(folder, EngineConfig(block_size=32)),
        lambda folder: measures(folder, EngineConfig(draft_tokens=2)),
    ],
    ids=["fact", "option", "drafts"],
)
def test_another_engine_measures_for_itself(tmp_path: Path, other: Callable[[Path], int]) -> None:
    assert measures(tmp_path) == 1
    assert [other(tmp_path), other(tmp_path), measures(tmp_path)] == [1, 0, 0]


def test_other_code_measures_for_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert measures(tmp_path) == 1
    monkeypatch.setattr("draftline.engine.fingerprint.code_digest", lambda folders: b"other code")
    assert measures(tmp_path) == 1


@pytest.mark.parametrize("age", [WEEK_S + 60, -3600], ids=["old", "from the future"])
def test_costs_are_kept_for_a_week(tmp_path: Path, age: float) -> None:
    measures(tmp_path, facts=("gone",))
    measures(tmp_path)
    for path in tmp_path.iterdir():
        os.utime(path, (time.time() - age,) * 2)
    assert [measures(tmp_path), measures(tmp_path)] == [1, 0]
    assert len(list(tmp_path.iterdir())) == (1 if age > 0 else 2)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[[1, 0, 0.5]",
        "[[1, 0, 0.5]]",
        "{}",
        "[[1, 0], [1, 2], [8, 0], [8, 2]]",
        "[[1, 0, 1], [1, 2, 1], [8, 0, 1], [8, 2, 0]]",
        "[[1, 0, 1], [1, 2, 1], [8, 0, 1], [8, 2, NaN]]",
        "[[1, 0, 1], [1, 2, 1], [8, 0, 1], [8, 2, [1]]]",
        b"\x80",
    ],
)
def test_a_file_that_has_not_these_costs_is_ignored_and_replaced(
    tmp_path: Path, content: str | bytes, caplog: pytest.LogCaptureFixture
) -> None:
    measures(tmp_path)
    [path] = tmp_path.iterdir()
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with caplog.at_level(logging.WARNING):
        assert measures(tmp_path) == 1
    [record] = caplog.records
    assert str(path) in record.getMessage()
    assert measures(tmp_path) == 0


def test_a_folder_that_cannot_be_written_is_one_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("")
    with caplog.at_level(logging.WARNING):
        assert measures(occupied / "folder") == 1
    assert len(caplog.records) == 1


def test_engines_of_one_shape_measure_once(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("caches")))
    measured: list[Costs] = []

    def measure(*arguments: Any) -> Costs:
        measured.append(measure_costs(*arguments))
        return measured[-1]

    monkeypatch.setattr(build, "measure_costs", measure)
    for options, times in (({}, 1), ({}, 1), ({"max_num_seqs": 3}, 2), ({"draft_length": "fixed"}, 2)):
        folder = write_byte_model(tmp_path_factory.mktemp("model"))
        with LLM(folder, load_format="dummy", **options):
            assert len(measured) == times
    assert set(measured[0]) == {(rows, drafts) for rows in (1, 4, 8) for drafts in range(5)}


@pytest.mark.parametrize("positions", [32, 4])
def test_a_draft_model_of_few_positions_is_measured_within_them(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, positions: int
) -> None:
    """A sequence that is longer does not draft with it. Where none can have all drafts, nothing is measured."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("caches")))
    target, draft = (write_byte_model(tmp_path_factory.mktemp("model")) for _ in range(2))
    config = Path(draft, "config.json")
    config.write_text(json.dumps({**json.loads(config.read_text()), "max_position_embeddings": positions}))
    with LLM(target, load_format="dummy", draft_model=draft) as llm:
        outputs = llm.generate("a" * 60, SamplingParams(max_tokens=4, ignore_eos=True), use_tqdm=False)
    assert len(outputs[0].outputs[0].token_ids) == 4
