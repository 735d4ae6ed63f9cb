"""Compiling a constraint ahead, on every face, and the time that a request waits for it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from byte_tokenizer import write_byte_model
from four_faces import FACES, OPTIONS, FourFaces
from patience import wait_until

from draftline import LLM, Constraint, ConstraintReport, InvalidRequestError, SamplingParams
from draftline.structured.automaton.worker_pool import AutomatonWorkerPool
from draftline.structured.constraint import ConstraintSpec

SHORT = SamplingParams(max_tokens=4, seed=1)


@pytest.mark.parametrize("face", FACES)
def test_compiling_ahead_reports_what_was_compiled(faces: FourFaces, face: str) -> None:
    report = faces.call(face, "compile", Constraint(regex="ab{2,5}c"))
    assert isinstance(report, ConstraintReport)
    assert (report.backend, report.runs_on, report.unenforced, report.no_automaton) == ("automaton", "device", (), "")
    assert report.states == 9
    assert report.token_classes > 0
    assert report.token_masks > 0
    assert report.compile_s > 0
    grammar = faces.call(face, "compile", Constraint(grammar='start: "a" start | "b"'))
    assert (grammar.backend, grammar.runs_on, grammar.states) == ("grammar", "host", 0)
    assert grammar.no_automaton
    with pytest.raises(InvalidRequestError, match=r"constraint\.regex"):
        faces.call(face, "compile", Constraint(regex="(a"))
    with pytest.raises(InvalidRequestError, match="constraint: must be a type or a Constraint, not None"):
        faces.call(face, "compile", None)


@pytest.mark.parametrize("face", FACES)
def test_the_wait_for_a_constraint_is_a_time_of_its_own(
    faces: FourFaces, face: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiling, seconds = AutomatonWorkerPool.compile, 0.05
    compilations, waits = [], []

    def compile_slowly(self: AutomatonWorkerPool, constraint: ConstraintSpec, **options: Any) -> Any:
        compilations.append(constraint)
        time.sleep(seconds)
        return compiling(self, constraint, **options)

    monkeypatch.setattr(AutomatonWorkerPool, "compile", compile_slowly)
    new = Constraint(regex=f"[a-c]{{3}}{FACES.index(face)}")
    for constraint in (new, new, None):
        [output] = faces.call(face, "generate", "a", SHORT, constraint=constraint)
        finished = output.outputs[0].finished
        assert finished is not None
        timing = finished.timing
        assert timing.queued_s >= 0
        assert timing.total_s >= timing.constraint_compile_s + timing.queued_s
        waits.append(timing.constraint_compile_s)
    compiled, _, none = waits
    assert compiled >= seconds
    assert len(compilations) == 1  # the second request finds it in the cache
    assert none == 0


def test_a_later_engine_finds_what_an_earlier_one_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, folder = write_byte_model(tmp_path), tmp_path / "kept"
    for _ in range(2):
        with LLM(model, constraint_cache=str(folder), **OPTIONS) as llm:
            report = llm.compile(Constraint(regex="a[bc]{3}"))
            wait_until(lambda: bool(list(folder.glob("*.tables"))))  # they are kept after the answer
        assert report.runs_on == "device"
        assert len(list(folder.glob("*.tables"))) == 1
        monkeypatch.setattr(AutomatonWorkerPool, "compile", None)  # no later one needs it
    monkeypatch.undo()
    with LLM(model, constraint_cache="none", **OPTIONS) as llm:
        llm.compile(Constraint(regex="a[bd]{3}"))
    assert len(list(folder.iterdir())) == 1
