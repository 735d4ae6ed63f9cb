"""The demo: a real server process, with the fake engine in the model's place."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from draftline.engine.cli import app, demo
from draftline.engine.cli.demo_view import LineView, PanelView


@pytest.fixture(autouse=True)
def fake_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "COMMAND", (sys.executable, str(Path(__file__).parents[2] / "helpers" / "fake_cli.py")))


def test_three_answers_over_one_stream_and_an_orderly_end() -> None:
    result = CliRunner().invoke(app, ["demo", "--max-tokens", "60"])
    assert result.exit_code == 0, result.output
    for name, question in demo.QUESTIONS.items():
        assert f"[{name}] ? {question}" in result.stdout
        assert f"[{name}] {f'user: {question}'[:60].strip()}" in result.stdout
        assert re.search(rf"^{name}: 60 tokens, [0-9.]+ tokens/s, finished: length$", result.stdout, re.MULTILINE)
    assert re.search(r"^together: 180 tokens in [0-9.]+ s, [0-9.]+ tokens/s$", result.stdout, re.MULTILINE)
    assert result.stdout.endswith("server: stopped by SIGTERM, exit code 0\n")


def test_a_server_that_dies_is_reported_with_its_last_words() -> None:
    result = CliRunner().invoke(app, ["demo", "--model", "missing"])
    assert result.exit_code == 1
    assert result.stderr == (
        "draftline: error: the server exited with code 1:\ndraftline: error: missing: no such file or folder\n"
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
