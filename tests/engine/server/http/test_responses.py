"""The answers of /v1/responses from an engine's updates: streamed and whole ones have the same items."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from fake_engine import fake_info
from fake_tokenizer import ByteTokenizer

from draftline.engine.chat.calls import ToolCall, ToolCallDelta
from draftline.engine.outputs import (
    Delta,
    Finished,
    FinishReason,
    PositionLogprobs,
    SpeculationStats,
    Timing,
    TokenLogprob,
    Usage,
)
from draftline.engine.protocol import GenerateRequest
from draftline.engine.server.http.body import parse
from draftline.engine.server.http.endpoints.responses import LOGPROBS, ResponseAnswer, ResponseBody
from draftline.engine.streaming.accumulator import Accumulator

CALL = ToolCallDelta(0, "id", "f", "{}")
CALLED = (ToolCall("id", "f", "{}"),)
END = Finished(0, FinishReason.EOS, "", Usage(1, 0, 5), SpeculationStats(), Timing(0, 0, 0, 0), None, 1)


def answered(updates: Sequence[Delta], end: Finished) -> tuple[list[Any], list[Any]]:
    """The items of a streamed response, and those of the same response at once."""
    engine: Any = SimpleNamespace(tokenizer=ByteTokenizer(), info=fake_info())
    nothing: Any = None
    asked = parse(ResponseBody, {"input": "x", "include": [LOGPROBS]})
    streamed, whole = (ResponseAnswer(asked, nothing, engine, "m") for _ in range(2))
    events = [*streamed.begin(), *(each for update in updates for each in streamed.update(0, update))]
    events += [*streamed.update(0, end), *streamed.end()]
    last = json.loads(events[-1].partition(b"data: ")[2])["response"]
    accumulator = Accumulator("", GenerateRequest([1]), [1])
    for update in (*updates, end):
        accumulator.take(update)
    return last["output"], whole.whole([accumulator.result()])["output"]


def shown(items: list[Any]) -> list[Any]:
    """The type of each item, and the tokens that its log-probabilities are of."""
    return [
        (
            item["type"],
            "".join(entry["token"] for part in item.get("content", ()) for entry in part.get("logprobs", ())),
        )
        for item in items
    ]


def delta(tokens: str, text: str = "", reasoning: str = "", *calls: ToolCallDelta) -> Delta:
    """An update whose tokens are single letters."""
    positions = tuple(PositionLogprobs(TokenLogprob(ord(token), -1.0, 1), ()) for token in tokens)
    return Delta(0, tuple(map(ord, tokens)), text, positions, (), reasoning, calls)


@pytest.mark.parametrize(
    ("updates", "end", "expected"),
    [
        ([delta("<"), delta("f{}>", "", "", CALL)], {"tool_calls": CALLED}, [("function_call", "")]),
        (
            [delta("ab", "ab"), delta("<"), delta("f{}>", "", "", CALL)],
            {"tool_calls": CALLED},
            [("message", "ab"), ("function_call", "")],
        ),
        (
            [delta("<so", "", "so"), delta("/>a", "a"), delta("b", "b"), delta(".")],
            {"reasoning_tokens": 5},
            [("reasoning", ""), ("message", "ab.")],
        ),
        ([delta("a", "a"), delta("."), delta("b", "b"), delta(".")], {}, [("message", "a.b.")]),
    ],
)
def test_log_probabilities_are_those_of_the_text(
    updates: list[Delta], end: dict[str, Any], expected: list[Any]
) -> None:
    streamed, whole = answered(updates, replace(END, **end))
    assert shown(streamed) == expected == shown(whole)


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.STOP])
def test_a_call_that_broke_off_is_no_item_of_the_output(reason: FinishReason) -> None:
    updates = [delta("ab", "ab"), delta("f{", "", "", replace(CALL, arguments="{"))]
    end = replace(END, finish_reason=reason)
    streamed, _ = answered(updates, end)
    assert shown(streamed) == [("message", "ab")]
