"""Tools of ``draftline chat``: which commands run, and what the model and the user see of them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import typer

from draftline.engine.chat.calls import ToolCall
from draftline.engine.cli.local_tools import print_answer, read_tools
from draftline.engine.outputs import Delta, Finished, FinishReason, SpeculationStats, Timing, Update, Usage

CALL = ToolCall("abc", "show", json.dumps({"argument": "a b; echo c"}))


def agree(monkeypatch: pytest.MonkeyPatch, *, yes: bool) -> list[str]:
    asked: list[str] = []

    def confirm(text: str, **_: object) -> bool:
        asked.append(text)
        return yes

    monkeypatch.setattr(typer, "confirm", confirm)
    return asked


def test_a_command_runs_without_a_shell_after_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = agree(monkeypatch, yes=True)
    [tool] = read_tools(["show=printf '%s|' x"]).values()
    assert tool.run(CALL) == "x|a b; echo c|"
    assert asked == ["run printf '%s|' x 'a b; echo c'?"]


def test_a_command_that_is_not_allowed_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    agree(monkeypatch, yes=False)
    assert "did not allow" in read_tools(["show=false"])["show"].run(CALL)


def test_a_failure_goes_to_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    agree(monkeypatch, yes=True)
    assert "exit status 1" in read_tools(["show=false"])["show"].run(CALL)
    assert "It failed" in read_tools(["show=/no/such/program"])["show"].run(CALL)


@pytest.mark.parametrize("values", [["show"], ["=ls"], ["a b=ls"], ["show="], ["show='"], ["a=ls", "a=ls"]])
def test_wrong_tools_are_refused(values: list[str]) -> None:
    with pytest.raises(typer.BadParameter):
        read_tools(values)


def test_calls_are_blocks_and_reasoning_is_no_output(capsys: pytest.CaptureFixture[str]) -> None:
    def updates() -> Iterator[Update]:
        yield Delta(0, (1,), "", reasoning="Hm.")
        yield Delta(0, (2,), "Let me look.")
        end = Usage(1, 0, 2), SpeculationStats(), Timing(0, 0, 0, 0), None, 0
        yield Finished(0, FinishReason.EOS, "", *end, tool_calls=(CALL,))

    message = print_answer(updates(), lambda end: "over")
    shown = capsys.readouterr()
    assert shown.out == "Let me look.\n"
    assert "Hm." in shown.err
    assert f"show\n└ {CALL.arguments}" in shown.err
    assert message == {"role": "assistant", "content": "Let me look.", "tool_calls": [CALL], "reasoning": "Hm."}
