"""Errors are the same on every face: class, message and fields, whether the engine runs in this process or behind gRPC."""

from __future__ import annotations

import math
import pickle
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
from four_faces import FACES, FourFaces
from pydantic import Field

import draftline
from draftline import (
    Chat,
    Constraint,
    DeadlineExceededError,
    DraftlineError,
    DuplicateRequestError,
    EngineStoppedError,
    FieldViolation,
    IncompleteOutputError,
    InvalidOutputError,
    InvalidRequestError,
    PermissionDeniedError,
    QueueFullError,
    Rendering,
    SamplingParams,
    Schema,
    StalledReaderError,
    StepFailedError,
    UnauthenticatedError,
)
from draftline.engine.client.errors import error_of
from draftline.engine.server.grpc.errors import to_status

LISTS = ("LLM", "Client", "AsyncClient")
"""The faces whose ``generate`` takes a list of prompts."""

PROMPT = "a text, token ids, {'prompt': …}, {'prompt_token_ids': […]} or a Chat"
MESSAGES = "a list of {'role': …, 'content': …} messages"


GENERATE: list[tuple[Any, dict[str, Any], str]] = [
    (None, {}, f"prompt: must be {PROMPT}, not None"),
    (3, {}, f"prompt: must be {PROMPT}, not an int"),
    (b"abc", {}, f"prompt: must be {PROMPT}, not bytes"),
    ({"text": "a"}, {}, f"prompt: must be {PROMPT}, not a dict with ['text']"),
    ({"prompt": None}, {}, f"prompt: must be {PROMPT}, not a dict with ['prompt']"),
    ({"prompt_token_ids": None}, {}, f"prompt: must be {PROMPT}, not a dict with ['prompt_token_ids']"),
    (
        {"prompt": "a", "multi_modal_data": {}},
        {},
        f"prompt: must be {PROMPT}, not a dict with ['multi_modal_data', 'prompt']",
    ),
    ([1, "b"], {}, "token_ids.ids[1]: must be an int, not a str"),
    ([-1], {}, "token_ids.ids[0]: -1 is not a token id"),
    ([1, 9999], {}, "token_ids.ids[1]: 9999 is not a token id of this model (0 to 258)"),
    (
        {"prompt_token_ids": [1] * 600},
        {},
        (
            "token_ids: the prompt is too long: 600 tokens, but at most 511 fit: this model's maximum context length "
            "is 512 tokens (max_model_len), with at least one output token"
        ),
    ),
    ("", {}, "text: is empty; a prompt needs at least one token"),
    ({"prompt_token_ids": []}, {}, "token_ids: is empty; a prompt needs at least one token"),
    (Chat([]), {}, "chat.messages: is empty"),
    ("a\ud800", {}, "text: character 1 is a surrogate code point, which no Unicode text has"),
    ("a", {"constraint": 3}, "constraint: must be a Constraint or a type, not an int"),
    (
        "a",
        {"constraint": {"type": "object"}},
        "constraint: must be a Constraint or a type, not a dict; for a JSON Schema, pass Schema(…)",
    ),
    ("a", {"constraint": Constraint(regex="(")}, None),
    ("a", {"constraint": Schema({"type": "string", "pattern": "(x)\\1"})}, None),
    (
        "a",
        {"sampling_params": SamplingParams(stop_token_ids=[9999])},
        "sampling.stop_token_ids[0]: 9999 is not a token id of this model (0 to 258)",
    ),
    (
        "a",
        {"sampling_params": SamplingParams(allowed_token_ids=(9999,))},
        "sampling.allowed_token_ids[0]: 9999 is not a token id of this model (0 to 258)",
    ),
    (
        "a",
        {"sampling_params": SamplingParams(bad_words=("a" * 256, "b" * 256))},
        "sampling.bad_words: have 1026 tokens, with and without a space before them; at most 1024 fit",
    ),
    ("a", {"sampling_params": {"n": 2}}, "sampling_params: must be SamplingParams, not a dict"),
    ("a", {"speculation": False}, "speculation: must be Speculation, not a bool"),
    ("a", {"priority": 2**31}, "priority: 2147483648 is not a 32-bit integer"),
    ("a", {"timeout": 0}, "timeout: must be more than 0 s, not 0 s"),
    ("a", {"timeout": "3"}, "timeout: must be a number of seconds, not '3'"),
]
"""Arguments of ``generate``, and the message; None where it is long, and only has to be the same everywhere."""

CHATS: list[tuple[Any, str]] = [
    (None, f"chat.messages: must be {MESSAGES}, not None"),
    ("hello", f"chat.messages: must be {MESSAGES}, not a str"),
    ([{"role": "user"}], "chat.messages[0]: needs exactly 'role' and 'content', has ['role']"),
    ([{"role": "user", "content": None}], "chat.messages[0].content: must be text, not None"),
    (
        [{"role": "user", "content": "a", "reasoning": "b"}],
        "chat.messages[0].reasoning: only a message of the role assistant has it, not user",
    ),
    (
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "a", "tool_call_id": "b"}],
        "chat.messages[1].tool_call_id: only a message of the role tool has it, not assistant",
    ),
    (
        [{"role": "assistant", "content": "a", "reasoning": "b", "reasoning_content": "c"}],
        "chat.messages[0].reasoning: is not the message's reasoning_content; set one of them",
    ),
    (
        [{"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "image_url", "image_url": {}}]}],
        "chat.messages[0].content[1]: must be {'type': 'text', 'text': …}: the model reads text",
    ),
    (
        [{"role": "user", "content": "a\ud800"}],
        "chat.messages[0].content: character 1 is a surrogate code point, which no Unicode text has",
    ),
    ([{"role": "user", "content": "a"}, "b"], "chat.messages[1]: must be {'role': …, 'content': …}, not a str"),
]


OF_A_CALL = [
    InvalidRequestError(FieldViolation("sampling.top_p", "is wrong"), FieldViolation("text", "is empty")),
    QueueFullError("8 requests wait, which is the limit", 1.5),
    DeadlineExceededError(),
    StepFailedError(),
    EngineStoppedError("the engine has stopped"),
    DuplicateRequestError("a request with id 'a' is running"),
    UnauthenticatedError("no token"),
    PermissionDeniedError("not yours"),
    StalledReaderError("too slow"),
]


@pytest.mark.parametrize(("prompt", "options", "message"), GENERATE)
def test_a_wrong_argument_is_the_same_error_everywhere(
    faces: FourFaces, prompt: Any, options: dict[str, Any], message: str | None
) -> None:
    errors = [failure(faces, face, "generate", prompt, **options) for face in FACES]
    assert len({str(error) for error in errors}) == 1
    assert message is None or str(errors[0]) == message
    assert len({error.violations for error in errors}) == 1
    if isinstance(prompt, list) or (isinstance(prompt, str) and "constraint" in options):
        return  # a list of ints is one prompt; an argument for all prompts belongs to none of them
    named = [failure(faces, face, "generate", [{"prompt_token_ids": [5]}, prompt], **options) for face in LISTS]
    assert len({str(error) for error in named}) == 1


def test_a_prompt_is_rendered_and_cut_the_same_everywhere(faces: FourFaces) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "bc"}]
    continued = Chat(messages, Rendering({"thinking": False}, continue_final_message=True))
    sampling = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    asked: list[tuple[Any, SamplingParams, int]] = [
        (Chat(messages), sampling, 8),
        (continued, sampling, 6),
        ("abcdef", sampling.model_copy(update={"truncate_prompt_tokens": 2}), 2),
        ([5] * 9000, sampling.model_copy(update={"truncate_prompt_tokens": 3}), 3),
        ([5] * 9000, sampling.model_copy(update={"truncate_prompt_tokens": -1, "max_tokens": 1}), 511),
    ]
    for prompt, params, length in asked:
        found = set()
        for face in FACES:
            [output] = faces.call(face, "generate", prompt, params)
            [one] = output.outputs
            found.add((tuple(one.token_ids), one.finished.usage.prompt_tokens))
        assert len(found) == 1
        assert found.pop()[1] == length


@pytest.mark.parametrize(("messages", "message"), CHATS)
def test_wrong_messages_are_the_same_error_everywhere(faces: FourFaces, messages: Any, message: str) -> None:
    for face in FACES:
        assert str(failure(faces, face, "chat", messages)) == message
    for face in LISTS:
        error = failure(faces, face, "chat", [[{"role": "user", "content": "fine"}], messages])
        assert str(error) == f"prompts[1].{message}"


@pytest.mark.parametrize("face", LISTS)
def test_a_bad_prompt_in_a_list_is_named_by_its_index(faces: FourFaces, face: str) -> None:
    for bad, field in (
        (None, "prompts[2]"),
        ("", "prompts[2].text"),
        ([1, None], "prompts[2].token_ids.ids[1]"),
        ([1, 9999], "prompts[2].token_ids.ids[1]"),
        (Chat([("nobody", "x" * 600)]), "prompts[2].chat.messages[0].role"),
    ):
        error = failure(faces, face, "generate", ["a", "b", bad])
        assert [violation.field for violation in error.violations] == [field]
    params = [SamplingParams(), SamplingParams(stop_token_ids=[9999])]
    error = failure(faces, face, "generate", ["a", "b"], params)
    assert [violation.field for violation in error.violations] == ["prompts[1].sampling.stop_token_ids[0]"]
    error = failure(faces, face, "generate", ["a", "b"], constraint=[None, 3])
    assert str(error) == "constraint[1]: must be a Constraint or a type, not an int"
    error = failure(faces, face, "generate", ["a", "b"], constraint=[None])
    assert str(error) == "constraint: has 1 entries for 2 prompts"


def test_a_schema_that_cannot_be_made_says_why() -> None:
    for schema, message in (
        (3, "schema: is no type that pydantic knows: Unable to generate pydantic-core schema for 3"),
        (Annotated[int, Field(lt=2.5)], 'schema: is no type that pydantic knows: Error building "int" validator: '),
        ({"enum": [{1, 2}]}, "schema: is no JSON: Object of type set is not JSON serializable"),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            Schema(schema)
        assert str(caught.value).startswith(message)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("timeout", [sys.maxsize, 1e300, math.inf])
def test_a_timeout_of_ages_is_none(timeout: float, faces: FourFaces, face: str) -> None:
    [output] = faces.call(face, "generate", "a", SamplingParams(max_tokens=1), timeout=timeout)
    assert output.finished


@pytest.mark.parametrize("face", FACES)
def test_a_timeout_has_one_message(faces: FourFaces, face: str) -> None:
    with pytest.raises(DeadlineExceededError) as caught:
        faces.call(face, "generate", "a", timeout=1e-9)
    assert str(caught.value) == "the request was not finished within its timeout"


@pytest.mark.parametrize("face", FACES)
def test_every_form_of_a_chat_is_the_same_prompt(faces: FourFaces, face: str) -> None:
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    message = {"role": "user", "content": "hi"}
    texts = {
        faces.call(face, verb, prompt, params)[0].outputs[0].text
        for verb, prompt in (
            ("chat", [message]),
            ("chat", Chat([message])),
            ("generate", Chat([message])),
            ("generate", Chat((("user", "hi"),))),
            ("generate", {"prompt_token_ids": faces.llm.tokenizer.encode_chat([("user", "hi")])}),
        )
    }
    assert len(texts) == 1


def test_the_errors_are_public_and_documented() -> None:
    errors = {name: getattr(draftline, name) for name in draftline.__all__ if name.endswith("Error")}
    table = (Path(__file__).resolve().parents[2] / "docs" / "errors.md").read_text()
    assert [name for name in errors if f"`{name}`" not in table] == []
    assert {type(error).__name__ for error in OF_A_CALL} <= set(errors)


@pytest.mark.parametrize("error", OF_A_CALL, ids=lambda error: type(error).__name__)
def test_a_call_ends_with_the_error_that_the_server_raised(error: DraftlineError) -> None:
    received = error_of(to_status(error))
    assert (type(received), str(received), vars(received)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize(
    "error",
    [
        IncompleteOutputError("cut", "{"),
        InvalidOutputError("{}", FieldViolation("a", "is missing")),
        InvalidRequestError(FieldViolation("a", "is wrong")).within("prompts[3]"),
    ],
)
def test_errors_survive_a_pickle(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def failure(faces: FourFaces, face: str, verb: str, *arguments: Any, **options: Any) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        faces.call(face, verb, *arguments, **options)
    return caught.value
