"""The client decodes the server's messages to the same outputs."""

from __future__ import annotations

import pytest

from draftline.engine.chat.calls import Tool
from draftline.engine.chat.messages import Chat
from draftline.engine.client.convert import chat_message, constraint_message, update
from draftline.engine.errors import InvalidRequestError
from draftline.engine.outputs import (
    BrokenOff,
    Delta,
    Finished,
    FinishReason,
    PositionLogprobs,
    SpeculationStats,
    TagSpan,
    Timing,
    TokenLogprob,
    Usage,
)
from draftline.engine.params import CONSTRAINT_KINDS, Constraint, Reasoning
from draftline.engine.server.grpc import convert
from draftline.engine.stats import StepTimes
from draftline.models.tokenization.rendering import Rendering
from draftline.v1 import engine_pb2 as pb

# Values that float32 represents exactly.
POSITION = PositionLogprobs(TokenLogprob(7, -0.5, 1), (TokenLogprob(7, -0.5, 1), TokenLogprob(9, -1.25, 2)))


def test_the_end_of_an_output_arrives_whole() -> None:
    end = Finished(
        index=2,
        finish_reason=FinishReason.STOP,
        matched_stop="\n",
        usage=Usage(3, 1, 5),
        speculation=SpeculationStats(8, 4, 2, (3, 1), "ngram", StepTimes(0.125, 0.25, 0.5, 1.0), synthetic=True),
        timing=Timing(1.5, 2.5, 3.5, 4.5),
        constraint_complete=True,
        seed=2**63 + 1,
        json_valid=False,
        system_fingerprint="fp_0123456789ab",
        unenforced=("/format",),
        broken_off=BrokenOff("/a~1b/0", 12),
        tags=(TagSpan("reasoning", "<think>", 0, 7, 9, 17), TagSpan("/format/tags/0", "é", 20, 21, 21, 22)),
    )
    assert update(pb.GenerateResponse(finished=convert.finished(end))) == end


@pytest.mark.parametrize(
    "delta",
    [
        Delta(1, (5, 6), "né"),
        Delta(1, (5,), "n", (POSITION,)),
        Delta(0, (), "", (), (POSITION, POSITION)),
    ],
    ids=["plain", "logprobs", "prompt-logprobs"],
)
def test_a_delta_arrives_whole(delta: Delta) -> None:
    (message,) = convert.deltas(delta)
    assert update(pb.GenerateResponse(delta=message)) == delta


def test_a_chat_arrives_whole() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    sent = Chat(
        [
            {"role": "user", "content": "1 + 1?"},
            {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "hm"},
            {"role": "tool", "content": "2", "tool_call_id": "1"},
            {"role": "assistant", "content": "It is"},
        ],
        Rendering({"enable_thinking": False}, add_generation_prompt=False, continue_final_message=True),
        tools=[Tool("add", "Adds.", '{"type": "object"}')],
        tool_choice="required",
        parallel_tool_calls=False,
        max_reasoning_tokens=7,
    )
    assert convert.chat(chat_message(sent)) == sent


def test_only_calls_may_stand_for_an_assistants_content() -> None:
    calls = [pb.ToolCall(name="add", arguments="{}")]
    chat = convert.chat(pb.Chat(messages=[pb.ChatMessage(role="assistant", tool_calls=calls)]))
    assert chat.messages == (("assistant", ""),)
    for message in (pb.ChatMessage(role="user", tool_calls=calls), pb.ChatMessage(role="assistant")):
        with pytest.raises(InvalidRequestError) as caught:
            convert.chat(pb.Chat(messages=[message]))
        assert [one.field for one in caught.value.violations] == ["chat.messages[0].content"]


@pytest.mark.parametrize("rendering", [Rendering(tools=({"type": "function"},)), Rendering(members={0: {"name": "a"}})])
def test_what_a_chat_has_itself_is_not_sent_in_its_rendering(rendering: Rendering) -> None:
    with pytest.raises(InvalidRequestError, match=r"chat\.rendering"):
        chat_message(Chat([("user", "a")], rendering))


KINDS: dict[str, object] = {
    "json_schema": "{}",
    "regex": "a",
    "choice": ("a", "b"),
    "json_object": True,
    "grammar": 'start: "a"',
    "structural_tag": "{}",
}
OPTIONS: dict[str, object] = {
    "whitespace": "spaced",
    "best_effort": True,
    "close_within_budget": True,
    "integers": "standard",
    "member_order": "any",
    "close_objects": True,
    "reasoning": Reasoning(begin="", end="</r>", required=False, max_tokens=9),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_constraint_arrives_whole(kind: str) -> None:
    options = ["close_within_budget", "reasoning"] if kind in ("regex", "choice", "grammar") else OPTIONS
    sent = Constraint.model_validate({kind: KINDS[kind]} | {name: OPTIONS[name] for name in options})
    assert convert.constraint_params(constraint_message(sent)) == sent


def test_every_option_of_a_constraint_is_sent_with_a_value_of_its_own() -> None:
    assert KINDS.keys() == set(CONSTRAINT_KINDS)
    assert KINDS.keys() | OPTIONS.keys() == Constraint.model_fields.keys()
    plain = Constraint(json_object=True)
    assert all(value != getattr(plain, name) for name, value in OPTIONS.items())


def test_all_unknown_enum_values_of_a_constraint_are_named() -> None:
    message = pb.Constraint(regex="a", whitespace=9, integers=8, member_order=7)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError) as caught:
        convert.constraint_params(message)
    assert [(violation.field, violation.description) for violation in caught.value.violations] == [
        ("constraint.whitespace", "unknown value 9"),
        ("constraint.integers", "unknown value 8"),
        ("constraint.member_order", "unknown value 7"),
    ]
