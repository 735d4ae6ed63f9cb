"""The demo: a real server process, with the fake engine in the model's place."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from draftline.engine.cli import app, demo
from draftline.engine.cli.views.demo import LineView, PanelView
from draftline.engine.outputs import Finished, FinishReason, SpeculationStats, Timing, Usage


@pytest.fixture(autouse=True)
def fake_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "COMMAND", (sys.executable, str(Path(__file__).parents[2] / "helpers" / "fake_cli.py")))


def test_the_answers_come_over_one_stream_and_the_server_ends_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "SCHEMAS", {})  # the fake engine's answers ignore them
    result = CliRunner().invoke(app, ["demo", "--max-tokens", "60"])
    assert result.exit_code == 0, result.output
    for name, question in demo.QUESTIONS.items():
        assert f"[{name}] ? {question}" in result.stdout
        assert f"[{name}] {f'user: {question}'[:60].strip()}" in result.stdout
        assert re.search(
            rf"^{name}: \d+ prompt \+ 60 output tokens, [0-9.]+ tokens/s, .*finished: length$",
            result.stdout,
            re.MULTILINE,
        )
    assert re.search(r"^together: 240 tokens in [0-9.]+ s, [0-9.]+ tokens/s$", result.stdout, re.MULTILINE)
    assert result.stdout.endswith("server: stopped by SIGTERM, exit code 0\n")


def test_a_server_that_dies_is_reported_with_its_last_words() -> None:
    result = CliRunner().invoke(app, ["demo", "--model", "missing"])
    assert result.exit_code == 1
    assert result.stderr.startswith(
        "draftline: error: the server exited with code 1:\ndraftline: error: missing: no such file or folder, "
    )


def test_lines_wrap_and_are_marked() -> None:
    console = Console(width=200, record=True)
    with console.capture() as captured, LineView(console, {"a": "A?", "b": "B?"}) as view:
        view.add("a", "one\ntw")
        view.add("b", "word " * 30)
        view.add("a", "o")
        view.end("a")
        view.end("b")
    words = " ".join(["word"] * 19)
    assert captured.get().splitlines() == [
        "[a] ? A?",
        "[b] ? B?",
        "[a] one",
        f"[b] {words}",
        "[a] two",
        f"[b] {' '.join(['word'] * 11)}",
    ]


@pytest.mark.parametrize("width", [40, 200])
def test_panels_show_every_question_and_answer(width: int) -> None:
    console = Console(width=width, force_terminal=True)
    with console.capture() as captured, PanelView(console, {"a": "A?", "b": "B?"}) as view:
        view.add("a", "[red]one")  # no markup
        view.add("b", "two")
        view.end("b")
    text = captured.get()
    for shown in ("A?", "[red]one", "B?", "two"):
        assert shown in text


def test_a_structured_answer_is_shown_as_values_and_accepted_drafts_are_counted() -> None:
    def answer(text: str, drafted: int, accepted: int) -> demo._Answer:
        end = Finished(
            index=0,
            finish_reason=FinishReason.EOS,
            matched_stop="",
            usage=Usage(10, 0, 20),
            speculation=SpeculationStats(drafted, accepted, drafter="ngram" if drafted else ""),
            timing=Timing(0.1, 0.1, 0.2, 0.5),
            constraint_complete=True if text.startswith("{") else None,
            seed=0,
        )
        return demo._Answer(text, end)

    answers = {name: answer("blue", 0, 0) for name in demo.QUESTIONS}
    answers["person"] = answer('{"name": "Ada [Lovelace]", "age": 36}', 12, 9)
    console = Console(width=200, record=True)
    with console.capture() as captured:
        demo._report(console, answers, 2.0)
    lines = captured.get().splitlines()
    assert (
        "person: 10 prompt + 20 output tokens, 40.0 tokens/s, first token after 0.20 s, finished: eos, complete, "
        "9 of 12 drafts accepted"
    ) in lines
    assert "person: valid JSON by its schema: name 'Ada [Lovelace]', age 36" in lines
    assert lines[-1] == "together: 80 tokens in 2.0 s, 40.0 tokens/s, 9 of 12 drafts accepted (drafter: ngram)"


@pytest.mark.slow
def test_the_demo_on_the_embedded_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "COMMAND", (sys.executable, "-m", "draftline"))
    result = CliRunner().invoke(app, ["demo", "--max-tokens", "64"])
    assert result.exit_code == 0, result.output
    assert re.search(r"^person: valid JSON by its schema: name '.*', age \d+, ", result.stdout, re.MULTILINE)
    assert re.search(
        r"^together: .*, [1-9]\d* of \d+ drafts accepted \(drafter: ngram\+eagle3\)$", result.stdout, re.MULTILINE
    )
