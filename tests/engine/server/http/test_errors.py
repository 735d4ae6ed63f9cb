"""Errors in OpenAI's form: each names the field by its name in the body, and nothing is ignored in silence."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fake_engine import FakeEngine
from http_client import http_client

from draftline.engine.errors import QueueFullError
from draftline.engine.outputs import Failed
from draftline.engine.protocol import GenerateRequest, Sink, Submitted
from draftline.engine.server.http.app import ENDPOINTS
from draftline.engine.server.http.fields import INERT, SAMPLING
from draftline.engine.server.limits import MAX_CUT

pytestmark = pytest.mark.asyncio(loop_scope="module")

COMPLETION = {"prompt": "a", "max_tokens": 1}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
RESPONSE = {"input": "a", "max_output_tokens": 1}
PLAIN = {"prompt": "a", "max_new_tokens": 1}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": COMPLETION,
    "/v1/chat/completions": CHAT,
    "/v1/responses": RESPONSE,
    "/generate": PLAIN,
}


async def error(http: httpx2.AsyncClient, path: str, status: int, **body: Any) -> dict[str, Any]:
    response = await http.post(path, json=body)
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error"}
    found: dict[str, Any] = response.json()["error"]
    assert set(found) == {"message", "type", "param", "code"}
    return found


_ASKED = {"role": "user", "content": "a"}
_FUNCTION = {"type": "function", "name": "f"}
_CALL = {"id": "", "function": {"name": "", "arguments": ""}}

WRONG: list[tuple[str, dict[str, Any], str, str]] = [
    ("/v1/completions", {"temperature": "hot"}, "temperature", "valid number"),
    ("/v1/completions", {"temperature": True}, "temperature", "valid number"),
    ("/v1/completions", {"temperature": -1}, "temperature", "greater than or equal to 0, not -1"),
    ("/v1/completions", {"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
    ("/v1/completions", {"max_tokens": 1.5}, "max_tokens", "integer"),
    ("/v1/completions", {"max_tokens": 5.0}, "max_tokens", "integer, not 5.0"),
    ("/v1/completions", {"stop": ["x"] * 65}, "stop", "has 65 entries; at most 64 fit"),
    ("/v1/completions", {"echo": True, "logprobs": 1, "prompt_logprobs": 5}, "prompt_logprobs", "echo lists 1"),
    ("/v1/completions", {"n": 65}, "n", "less than or equal to 64"),
    ("/v1/completions", {"stop": ["a", 1]}, "stop", "valid string"),
    ("/v1/completions", {"stop": ["a", ""]}, "stop[1]", "at least 1 character"),
    ("/v1/completions", {"stop": ["x"] * 5000}, "stop", "at most 4096 fit"),
    ("/v1/completions", {"logit_bias": {"x": 1}}, "logit_bias", "'x' is not a token id"),
    ("/v1/completions", {"logit_bias": {"1": 1, "01": 2}}, "logit_bias", "'01' is not a token id"),
    ("/v1/completions", {"logit_bias": {"999": 1}}, "logit_bias[999]", "999 is not a token id of this model"),
    ("/v1/completions", {"allowed_token_ids": [1, 999]}, "allowed_token_ids[1]", "999 is not a token id of this model"),
    ("/v1/completions", {"allowed_token_ids": [1] * 257}, "allowed_token_ids", "has 257 token ids; at most 256 fit"),
    ("/v1/completions", {"allowed_token_ids": []}, "allowed_token_ids", "has 0 entries; it needs at least 1"),
    ("/v1/completions", {"bad_words": ["a" * 256] * 3 + ["b" * 256]}, "bad_words", "have 1026 tokens"),
    ("/v1/completions", {"logprobs": 21}, "logprobs", "less than or equal to 20"),
    ("/v1/completions", {"min_tokens": 5}, "min_tokens", "exceeds max_tokens"),
    ("/v1/completions", {"speculation": {"enabled": False, "draft_tokens": 3}}, "speculation.draft_tokens", "is off"),
    ("/v1/completions", {"prompt": ""}, "prompt", "is empty"),
    ("/v1/completions", {"prompt": []}, "prompt", "is empty"),
    ("/v1/completions", {"prompt": [1, "a"]}, "prompt", "string"),
    ("/v1/completions", {"prompt": ["a", ""]}, "prompt[1]", "is empty"),
    ("/v1/completions", {"prompt": [1, 999]}, "prompt[1]", "999 is not a token id"),
    ("/v1/completions", {"prompt": [[1], [1, -9]]}, "prompt[1][1]", "-9 is not a token id"),
    ("/v1/completions", {"prompt": [1] * 5000}, "prompt", "5000 tokens, but at most 4095 fit"),
    ("/v1/completions", {"prompt": [1] * (MAX_CUT + 1), "truncate_prompt_tokens": 1}, "prompt", "1048576 fit"),
    ("/v1/completions", {"prompt": ["a"] * 1025}, "prompt", "at most 1024 fit"),
    ("/v1/completions", {"stream_options": {"include_usage": True}}, "stream_options", "stream is not"),
    ("/v1/completions", {"stream": True, "prompt_logprobs": 1}, "prompt_logprobs", "in a stream"),
    ("/v1/completions", {"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "at least 1, or -1"),
    ("/v1/completions", {"timeout": 0}, "timeout", "greater than 0"),
    ("/v1/completions", {"priority": 2**40}, "priority", "32-bit"),
    ("/v1/completions", {"speculation": {"enabled": True}}, "speculation.enabled", "no drafter"),
    ("/v1/completions", {"temprature": 1}, "temprature", "did you mean temperature?"),
    ("/v1/completions", {"guided_regex": "a"}, "guided_regex", "use structured_outputs"),
    ("/v1/completions", {"regex": "a"}, "regex", "use structured_outputs"),
    ("/v1/chat/completions", {"ebnf": 'root ::= "a"'}, "ebnf", "use structured_outputs with a grammar"),
    ("/v1/completions", {"guided_whitespace_pattern": "a"}, "guided_whitespace_pattern", "use structured_outputs"),
    ("/v1/completions", {"response_format": {"type": "xml"}}, "response_format.type", "json_schema"),
    (
        "/v1/completions",
        {"response_format": {"type": "json_object", "json_schema": {"schema": True}}},
        "response_format.json_schema",
        "response_format.type is json_object",
    ),
    (
        "/v1/completions",
        {"response_format": {"type": "text", "json_schema": {"name": "a"}}},
        "response_format.json_schema",
        "response_format.type is text",
    ),
    ("/v1/completions", {"response_format": {"type": "regex", "pattern": "a"}}, "response_format.type", "'regex'"),
    ("/v1/completions", {"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema", "missing"),
    ("/v1/completions", {"structured_outputs": {}}, "structured_outputs", "exactly one"),
    (
        "/v1/completions",
        {"structured_outputs": {"regex": "a", "whitespace": "compact"}},
        "structured_outputs.whitespace",
        "without effect where regex is set",
    ),
    (
        "/v1/completions",
        {"structured_outputs": {"json_object": True, "member_order": "any"}},
        "structured_outputs.member_order",
        "without effect where json_object is set",
    ),
    ("/v1/completions", {"structural_tag": {}}, "structural_tag", "structured_outputs"),
    ("/v1/completions", {"structured_outputs": {"regx": "a"}}, "structured_outputs.regx", "did you mean regex?"),
    ("/v1/chat/completions", {"max_completion_tokens": 2}, "max_completion_tokens", "set one of"),
    ("/v1/chat/completions", {"messages": []}, "messages", "is empty"),
    ("/v1/chat/completions", {"messages": [{"role": "king", "content": "a"}]}, "messages[0].role", "'developer'"),
    ("/v1/chat/completions", {"messages": [{"role": "user"}]}, "messages[0].content", "required"),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content",
        "",
    ),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "a", "name": name} for name in ("Al", "Bo")]},
        "messages[1].name",
        "no names",
    ),
    ("/v1/chat/completions", {"messages": [_ASKED | {"tool_call_id": "a"}]}, "messages[0].tool_call_id", "role tool"),
    ("/v1/chat/completions", {"messages": [_ASKED | {"reasoning": "a"}]}, "messages[0].reasoning", "role assistant"),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "assistant", "content": "a", "reasoning": "b", "reasoning_content": "c"}]},
        "messages[0].reasoning",
        "is not the message's reasoning_content",
    ),
    ("/v1/chat/completions", {"top_logprobs": 2}, "top_logprobs", "logprobs is not"),
    ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 21}, "top_logprobs", "less than or equal to 20"),
    ("/v1/chat/completions", {"tools": [{"type": "function"}]}, "tools[0].function", "required"),
    ("/v1/chat/completions", {"tools": [{"type": "custom", "custom": {}}]}, "tools[0].type", "not 'custom'"),
    ("/v1/chat/completions", {"tool_choice": "required"}, "tool_choice", "there are no tools"),
    ("/v1/chat/completions", {"parallel_tool_calls": True}, "parallel_tool_calls", "there are no tools"),
    ("/v1/chat/completions", {"parallel_tool_calls": False}, "parallel_tool_calls", "there are no tools"),
    ("/v1/chat/completions", {"continue_final_message": True}, "messages", "must end with"),
    ("/v1/chat/completions", {"echo": True}, "echo", "only /v1/completions"),
    ("/v1/responses", {"previous_response_id": "resp_1"}, "previous_response_id", "stores nothing"),
    ("/v1/responses", {"tools": [{"type": "web_search"}]}, "tools[0].type", "not 'web_search'"),
    ("/v1/responses", {"tools": [_FUNCTION | {"defer_loading": True}]}, "tools[0].defer_loading", "shows all tools"),
    ("/v1/responses", {"tools": [_FUNCTION | {"output_schema": {}}]}, "tools[0].output_schema", "do not show it"),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "assistant", "tool_calls": [_CALL] * 4097}]},
        "messages",
        "have 4097 tool calls; at most 4096 fit",
    ),
    (
        "/v1/chat/completions",
        {"chat_template_kwargs": {"a": "x" * 2**18}},
        "chat_template_kwargs",
        "at most 262144 fit",
    ),
    ("/v1/responses", {"background_options": {}}, "background_options", "stores nothing"),
    ("/v1/responses", {"background": True}, "background", "stores nothing"),
    ("/v1/responses", {"store": True}, "store", "stores nothing"),
    ("/v1/responses", {"truncation": "auto"}, "truncation", "truncate_prompt_tokens"),
    ("/v1/responses", {"text": {"format": {"type": "json_schema"}}}, "text.format.schema", "missing"),
    ("/v1/responses", {"text": {"verbosity": "low"}}, "text.verbosity", "no such control"),
    ("/generate", {"n": 2}, "n", "is not a field here"),
    ("/generate", {"max_tokens": 2}, "max_tokens", "did you mean"),
]


_PART = {"type": "text", "text": "a"}
_IMAGE = {"type": "image_url", "image_url": {}}

UNIONS: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/completions", {"prompt": 5}, "prompt: Input should be a valid string or a valid list, not 5"),
    ("/v1/completions", {"prompt": None}, "prompt: Input should be a valid string or a valid list, not null"),
    ("/v1/completions", {"prompt": {}}, "prompt: Input should be a valid string or a valid list, not an object"),
    ("/v1/completions", {"stop": ["a", 5]}, "stop[1]: Input should be a valid string, not 5"),
    ("/v1/completions", {"max_tokens": "5"}, "max_tokens: Input should be a valid integer, not '5'"),
    ("/v1/chat/completions", {"messages": ["a"]}, "messages[0]: Input should be an object, not a string"),
    ("/v1/chat/completions", {"messages": "a"}, "messages: Input should be a valid list, not a string"),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "bot", "content": "a"}]},
        "messages[0].role: Input should be 'system', 'developer', 'user', 'assistant' or 'tool', not 'bot'",
    ),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [_PART, {"type": "text"}]}]},
        "messages[0].content[1].text: Field required",
    ),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [_IMAGE]}]},
        "messages[0].content[0].image_url: is not supported: the model reads text",
    ),
    ("/v1/responses", {"input": [{"role": "user"}]}, "input[0].content: Field required"),
    (
        "/v1/responses",
        {"input": [{"role": "user", "content": [_IMAGE]}]},
        "input[0].content[0].image_url: is not supported: the model reads text",
    ),
    (
        "/v1/responses",
        {"input": [{"type": "item_reference", "id": "x"}]},
        "input[0].type: item_reference is not supported: this server stores nothing; send the item itself",
    ),
    (
        "/v1/responses",
        {"input": [{"type": "compaction"}]},
        "input[0].type: Input should be 'message', 'function_call', 'function_call_output' or 'reasoning', not 'compaction'",
    ),
    (
        "/v1/responses",
        {"input": [_ASKED, {"type": "function_call", "call_id": "c", "name": "f", "arguments": "[]"}]},
        "input[1].arguments: must be a JSON object",
    ),
    ("/generate", {"prompt": [1, "a"]}, "prompt[1]: Input should be a valid integer, not a string"),
]


@pytest.mark.parametrize(("path", "change", "message"), UNIONS)
async def test_a_field_of_several_types_has_one_error_at_the_wrong_place(
    http: httpx2.AsyncClient, path: str, change: dict[str, Any], message: str
) -> None:
    found = await error(http, path, 400, **(BODIES[path] | change))
    assert found["message"] == message
    assert found["param"] == message.partition(": ")[0]


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("/v1/completions", {"prompt": [5, "secret"]}),
        ("/v1/completions", {"prompt": {"text": "secret"}}),
        ("/v1/chat/completions", {"messages": "secret"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": ["secret"]}]}),
        ("/v1/responses", {"input": ["secret"]}),
        ("/v1/responses", {"instructions": ["secret"]}),
    ],
)
async def test_a_prompt_of_the_wrong_type_is_not_in_the_log(
    http: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture, path: str, change: dict[str, Any]
) -> None:
    caplog.set_level(logging.INFO, "draftline.requests")
    await error(http, path, 400, **(BODIES[path] | change))
    [record] = [record for record in caplog.records if record.name == "draftline.requests"]
    assert record.fields["reason"].startswith(next(iter(change)))  # type: ignore[attr-defined]
    assert "secret" not in str(record.fields)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("path", "change", "param", "part"), WRONG)
async def test_an_error_names_the_field(
    http: httpx2.AsyncClient, path: str, change: dict[str, Any], param: str, part: str
) -> None:
    found = await error(http, path, 400, **(BODIES[path] | change))
    assert found["type"] == "invalid_request_error"
    assert (found["param"] or "").startswith(param), found
    assert part in found["message"]


async def test_all_wrong_fields_are_listed(http: httpx2.AsyncClient) -> None:
    found = await error(http, "/v1/completions", 400, **COMPLETION | {"top_p": 3, "min_p": -1, "n": 0})
    assert found["param"] == "top_p"
    assert all(name in found["message"] for name in ("top_p: ", "min_p: ", "n: "))


@pytest.mark.parametrize(
    ("path", "options", "param", "named"),
    [
        ("/v1/completions", {"stop_token_ids": ["a"] * 99}, "stop_token_ids[0]", 1),
        ("/v1/completions", {"prompt": [None] * 99}, "prompt[0]", 1),
        ("/v1/completions", {"prompt": [[None] * 99] * 99}, "prompt[0][0]", 1),
        ("/v1/completions", {"logit_bias": dict.fromkeys(map(str, range(9999)), "a")}, "logit_bias", 1),
        ("/v1/completions", dict.fromkeys(map(str, range(9999)), 1), "0", 16),
        ("/v1/chat/completions", {"messages": [1] * 99}, "messages[0]", 1),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [1] * 99}]}, "messages[0].content[0]", 1),
    ],
)
async def test_few_of_many_wrong_entries_are_named(
    path: str, options: dict[str, Any], param: str, named: int, http: httpx2.AsyncClient
) -> None:
    """A body has room for millions of them, and the server serves nothing else while it names them."""
    found = await error(http, path, 400, **BODIES[path] | options)
    assert found["param"] == param
    assert found["message"].count(": ") == named


async def test_a_schema_that_cannot_be_enforced_is_named_by_its_place(http: httpx2.AsyncClient) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"properties": {"a": {"$ref": "#/no"}}}}}
    found = await error(http, "/v1/chat/completions", 400, **CHAT, response_format=form)
    assert found["param"].startswith("response_format.json_schema.schema#/properties/a")


@pytest.mark.parametrize("path", BODIES)
async def test_fields_without_effect_are_accepted_and_others_refused(http: httpx2.AsyncClient, path: str) -> None:
    endpoint = next(each for each in ENDPOINTS if each.path == path)
    names = INERT.keys() - endpoint.body.model_fields.keys()
    assert len(names) > 30
    harmless: dict[str, Any] = dict.fromkeys(names)
    assert (await http.post(path, json=BODIES[path] | harmless)).status_code == 200
    accepted = {name: ({"a": "b"},) if INERT[name].values is None else INERT[name].values for name in names}
    for turn in range(max(map(len, accepted.values()))):
        # A field that is refused would be named.
        harmless = {name: values[turn] for name, values in accepted.items() if turn < len(values)}
        response = await http.post(path, json=BODIES[path] | harmless)
        assert response.status_code == 200, response.text
    for name in names:
        if INERT[name].values is not None:
            found = await error(http, path, 400, **BODIES[path] | {name: "something else"})
            assert found["param"] == name


_CALL = {"id": "c", "type": None, "function": {"name": "f", "arguments": "", "parsed_arguments": {}}}
_CALLED = {"role": "assistant", "content": None, "tool_calls": [_CALL], "parsed": {"a": 1}, "unknown": None}


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("/v1/chat/completions", {"messages": [_ASKED, _CALLED, _ASKED]}),
        ("/v1/chat/completions", {"top_logprobs": 0}),
        (
            "/v1/responses",
            {"input": [{"role": "assistant", "content": "a", "phase": "final_answer"}, _ASKED], "metadata": {"a": "b"}},
        ),
        ("/v1/responses", {"reasoning": {"effort": None}, "text": {"format": {"type": "text", "schema": None}}}),
    ],
)
async def test_what_clients_send_back_or_leave_unset_is_accepted(
    http: httpx2.AsyncClient, path: str, change: dict[str, Any]
) -> None:
    response = await http.post(path, json=BODIES[path] | change)
    assert response.status_code == 200, response.text
    assert response.json().get("metadata", {}) == change.get("metadata", {})


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json; charset=utf8", 200),
        ('application/json; charset="UTF-8"; version=1', 200),
        ("application/json; charset=latin-1", 415),
        ("application/json; charset=none", 415),
        ("text/plain", 415),
        ("", 415),
    ],
)
async def test_the_type_of_a_body(http: httpx2.AsyncClient, kind: str, status: int) -> None:
    content = json.dumps(COMPLETION)
    response = await http.post("/v1/completions", content=content, headers={"content-type": kind})
    assert response.status_code == status, response.text


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ('{"prompt": "a", "max_tokens": 1, "max_tokens": 2}', "max_tokens"),
        ('{"prompt": "a", "logit_bias": {"1": 1, "1": 2}}', "1"),
        ('{"prompt": "a", "structured_outputs": {"json": {"type": "string", "type": "integer"}}}', "type"),
        ('{"prompt": "a", "seed": 1, "\\u0073eed": 1}', "seed"),
    ],
    ids=["a field", "a token", "in a schema", "escaped"],
)
async def test_two_members_of_one_name_are_refused(http: httpx2.AsyncClient, content: str, name: str) -> None:
    headers = {"content-type": "application/json"}
    response = await http.post("/v1/completions", content=content, headers=headers)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == f"the body has an object with two members named {name!r}"


@pytest.mark.parametrize("name", ["add_generation_prompt", "continue_final_message", "chat_template_kwargs"])
async def test_a_prompt_to_tokenize_has_no_options_of_messages(http: httpx2.AsyncClient, name: str) -> None:
    found = await error(http, "/tokenize", 400, prompt="a", **{name: {} if name.startswith("chat") else False})
    assert (found["param"], found["message"]) == (name, f"{name}: is for messages, not for a prompt")


async def test_the_table_has_only_parameters_that_exist() -> None:
    from draftline.engine.params import SamplingParams

    assert set(SAMPLING.values()) <= set(SamplingParams.model_fields)
    fields = set().union(*(endpoint.body.model_fields for endpoint in ENDPOINTS))
    assert set(SAMPLING) <= fields


@pytest.mark.parametrize("path", BODIES)
async def test_another_model_is_not_found(http: httpx2.AsyncClient, path: str) -> None:
    found = await error(http, path, 404, **BODIES[path] | {"model": "gpt-9"})
    assert (found["param"], found["code"]) == ("model", "model_not_found")


@pytest.mark.parametrize("path", BODIES)
async def test_a_full_queue(serve: Any, make_engine: Any, path: str) -> None:
    engine = make_engine(max_waiting=1)
    engine.hold()
    async with http_client(await serve(engine)) as http:
        first = asyncio.ensure_future(http.post(path, json=BODIES[path]))
        await asyncio.to_thread(engine.wait_running, 1)
        response = await http.post(path, json=BODIES[path])
        assert response.status_code == (503 if path == "/generate" else 429)
        assert response.headers["retry-after"] == "2"
        assert response.headers["retry-after-ms"] == "1500"
        engine.release()
        assert (await first).status_code == 200


@pytest.mark.parametrize("path", BODIES)
async def test_a_queue_that_is_full_in_another_process(
    http: httpx2.AsyncClient, shared_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """The engine's process refuses by an update, which a stream answers with the status, too."""
    take = shared_engine.submit

    def submit(request_id: str, request: GenerateRequest, sink: Sink) -> Submitted:
        submitted = take(request_id, request, lambda updates: None)
        shared_engine.cancel(request_id)
        sink([(request_id, Failed(QueueFullError("full", 1.5)))])
        return submitted

    monkeypatch.setattr(shared_engine, "submit", submit)
    for stream in (False, True):
        response = await http.post(path, json=BODIES[path] | {"stream": stream})
        assert response.status_code == (503 if path == "/generate" else 429)
        assert response.headers["retry-after"] == "2"


async def test_a_timeout(http: httpx2.AsyncClient, shared_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    from draftline.engine.errors import DeadlineExceededError

    def submit(*_: Any) -> Any:
        raise DeadlineExceededError

    monkeypatch.setattr(shared_engine, "submit", submit)
    found = await error(http, "/v1/completions", 504, **COMPLETION, timeout=1)
    assert found["type"] == "timeout_error"


async def test_a_fault_is_reported_without_its_cause(
    http: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    found = await error(http, "/v1/completions", 500, prompt="CRASH")
    assert "secret" not in json.dumps(found)
    assert "a secret of the server" in caplog.text
    stream = await http.post("/v1/completions", json={"prompt": "FAIL", "max_tokens": 9, "stream": True})
    assert '"type":"server_error"' in stream.text
    assert "secret" not in stream.text


async def test_bodies_that_are_no_json(http: httpx2.AsyncClient) -> None:
    kind = {"content-type": "application/json"}
    texts = (b"", b"{", b"[]", b"null", b'{"prompt": NaN}', b'{"prompt": "\\ud800"}', b"\xff", b"[" * 5000, b"9" * 9999)
    for content in texts:
        response = await http.post("/v1/completions", content=content, headers=kind)
        assert response.status_code == 400, content
        assert response.json()["error"]["type"] == "invalid_request_error"
    for headers in ({}, {"content-type": "text/plain"}, kind | {"content-encoding": "gzip"}):
        response = await http.post("/v1/completions", content=b'{"prompt": "a"}', headers=headers)
        assert response.status_code == 415
    utf8 = {"content-type": "application/json; charset=utf-8"}
    assert (await http.post("/v1/completions", content=b'{"prompt": "a"}', headers=utf8)).status_code == 200


async def test_paths_and_methods(http: httpx2.AsyncClient) -> None:
    nothing, wrong = await http.get("/nothing"), await http.get("/v1/completions")
    assert (nothing.status_code, nothing.json()["error"]["message"]) == (404, "there is no path '/nothing'")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert wrong.json()["error"]["message"] == "the path '/v1/completions' does not take GET"
    assert (await http.post("/v1/models", json={})).status_code == 405
    assert (await http.get("/v1/models/other")).json()["error"]["code"] == "model_not_found"


async def test_a_body_that_is_too_large(serve: Any) -> None:
    async with http_client(await serve(max_request_mib=1)) as http:
        for content in (b'{"prompt": "' + b"a" * (1 << 20) + b'"}', _in_parts(2 << 20)):
            kind = {"content-type": "application/json"}
            response = await http.post("/v1/completions", content=content, headers=kind)
            assert response.status_code == 413
            assert "max_request_mib" in response.json()["error"]["message"]


async def _in_parts(size: int) -> Any:
    for _ in range(size >> 16):
        yield b"a" * (1 << 16)


async def test_the_limits_of_a_token(serve: Any, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.yaml"
    entry = {"name": "a", "token": "x" * 20, "max_tokens": 3, "max_priority": 1, "requests_per_minute": 4}
    tokens.write_text(json.dumps({"tokens": [entry]}))
    server = await serve(tokens=str(tokens))
    headers = {"authorization": f"Bearer {'x' * 20}"}
    async with http_client(server, headers=headers) as http:
        limited = await http.post("/v1/chat/completions", json={"messages": CHAT["messages"]})
        assert limited.json()["usage"]["completion_tokens"] == 3
        assert (await error(http, "/v1/chat/completions", 400, **CHAT | {"max_tokens": 4}))["param"] == "max_tokens"
        assert (await error(http, "/v1/completions", 400, prompt="a", priority=2))["param"] == "priority"
        assert (await http.post("/tokenize", json={"prompt": "a"})).status_code == 200
        response = await http.post("/v1/completions", json=COMPLETION)
        assert response.status_code == 429
        assert 1 <= int(response.headers["retry-after"]) <= 15
