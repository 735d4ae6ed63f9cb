"""The endpoints' answers, in OpenAI's and vLLM's form. The fake engine repeats its prompt."""

from __future__ import annotations

import json
import re
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import httpx2
import pytest
from byte_compilers import byte_compiler
from fake_engine import MAX_MODEL_LEN, FakeEngine
from fake_tokenizer import ByteTokenizer
from http_client import http_client

from draftline.engine.server.http import fields as known_fields
from draftline.engine.server.limits import MAX_CONSTRAINT
from draftline.structured.compiler import ConstraintCompiler

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAGE = Path(__file__).parents[4] / "docs/http.md"
GENERATING = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/generate")


async def answer(http: httpx2.AsyncClient, path: str, **body: Any) -> Any:
    response = await http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def chunks(http: httpx2.AsyncClient, path: str, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream, which must end with [DONE]."""
    response = await http.post(path, json={**body, "stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    data = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    return [json.loads(each) for each in data[:-1]]


async def test_a_completion(http: httpx2.AsyncClient) -> None:
    whole = await answer(http, "/v1/completions", prompt="hello", max_tokens=7, model="fake")
    assert whole["object"] == "text_completion"
    assert whole["system_fingerprint"] == "fp_fake"
    assert whole["choices"] == [
        {"index": 0, "text": "hellohe", "logprobs": None, "finish_reason": "length", "stop_reason": None}
    ]
    details = {"cached_tokens": 0}
    assert whole["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 7,
        "total_tokens": 12,
        "prompt_tokens_details": details,
    }


async def test_a_completion_without_a_limit_has_sixteen_tokens(http: httpx2.AsyncClient) -> None:
    assert (await answer(http, "/v1/completions", prompt="ab"))["choices"][0]["text"] == "ab" * 8


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("abc", ["ab"]),
        ([97, 98, 99], ["ab"]),
        (["abc", "xyz"], ["ab", "xy"]),
        ([[97, 98], [120, 121]], ["ab", "xy"]),
    ],
)
async def test_the_forms_of_prompts(http: httpx2.AsyncClient, prompt: object, texts: list[str]) -> None:
    whole = await answer(http, "/v1/completions", prompt=prompt, max_tokens=2)
    assert [choice["text"] for choice in whole["choices"]] == texts
    assert [choice["index"] for choice in whole["choices"]] == list(range(len(texts)))
    pieces = dict.fromkeys(range(len(texts)), "")
    for chunk in await chunks(http, "/v1/completions", prompt=prompt, max_tokens=2):
        for choice in chunk["choices"]:
            pieces[choice["index"]] += choice["text"]
    assert list(pieces.values()) == texts


async def test_several_outputs_of_several_prompts(http: httpx2.AsyncClient) -> None:
    whole = await answer(http, "/v1/completions", prompt=["ab", "xyz"], n=2, max_tokens=2)
    assert [choice["text"] for choice in whole["choices"]] == ["ab", "ab", "xy", "xy"]
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3]
    assert whole["usage"]["prompt_tokens"] == 5
    assert whole["usage"]["completion_tokens"] == 8


async def test_an_echo_with_log_probabilities(http: httpx2.AsyncClient) -> None:
    whole = await answer(http, "/v1/completions", prompt="abc", max_tokens=1, echo=True, logprobs=2)
    [choice] = whole["choices"]
    assert choice["text"] == "abca"
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == ["a", "b", "c", "a"]
    assert logprobs["token_logprobs"] == [None, 0, 0, 0]
    assert logprobs["text_offset"] == [0, 1, 2, 3]
    assert logprobs["top_logprobs"] == [None, {"b": 0, "c": -0.5}, {"c": 0, "d": -0.5}, {"a": 0, "b": -0.5}]


@pytest.mark.parametrize("biased", [{}, {"logit_bias": {"0": 100}}])
async def test_an_echo_without_an_output(http: httpx2.AsyncClient, biased: dict[str, Any]) -> None:
    body = {"prompt": ["abc", "h"], "max_tokens": 0, "n": 2, "echo": True, "logprobs": 1, **biased}
    whole = await answer(http, "/v1/completions", **body)
    assert [choice["text"] for choice in whole["choices"]] == ["abc", "abc", "h", "h"]
    assert [choice["logprobs"]["tokens"] for choice in whole["choices"]] == [["a", "b", "c"]] * 2 + [["h"]] * 2
    assert {choice["finish_reason"] for choice in whole["choices"]} == {"length"}
    assert whole["usage"]["completion_tokens"] == 0
    assert whole["usage"]["total_tokens"] == 4
    events = await chunks(http, "/v1/completions", **body, stream_options={"include_usage": True})
    assert events[-1]["usage"]["completion_tokens"] == 0
    for index, choice in enumerate(whole["choices"]):
        parts = [event["choices"][0] for event in events[:-1] if event["choices"][0]["index"] == index]
        assert "".join(part["text"] for part in parts) == choice["text"]
        assert [part["logprobs"] for part in parts if part["logprobs"]] == [choice["logprobs"]]
        assert parts[-1]["finish_reason"] == "length"
    plain = await answer(http, "/v1/completions", prompt="abc", max_tokens=0, echo=True)
    assert plain["choices"][0]["text"] == "abc"
    refused = await http.post("/v1/completions", json={"prompt": "abc", "max_tokens": 0})
    assert refused.json()["error"]["param"] == "max_tokens"


async def test_an_echo_in_a_stream(http: httpx2.AsyncClient) -> None:
    events = await chunks(http, "/v1/completions", prompt=[104, 105], max_tokens=3, echo=True)
    assert "".join(choice["text"] for event in events for choice in event["choices"]) == "hihih"


async def test_an_echo_with_log_probabilities_in_a_stream(http: httpx2.AsyncClient) -> None:
    """The chunks, put together, are the whole answer."""
    body = {"prompt": ["abc", "h"], "max_tokens": 2, "n": 2, "echo": True, "logprobs": 2, "seed": 1}
    whole = await answer(http, "/v1/completions", **body)
    events = await chunks(http, "/v1/completions", **body)
    for choice in whole["choices"]:
        parts = [each for event in events for each in event["choices"] if each["index"] == choice["index"]]
        assert "".join(part["text"] for part in parts) == choice["text"]
        listed = [part["logprobs"] for part in parts if part["logprobs"]]
        assert {name: [one for each in listed for one in each[name]] for name in listed[0]} == choice["logprobs"]


@pytest.mark.parametrize("echo", [True, False])
async def test_tokens_that_share_a_character_have_its_offset(http: httpx2.AsyncClient, echo: bool) -> None:
    """The tokens are bytes. The last one is a part of a character alone."""
    body = {"prompt": "é😀a€", "max_tokens": 13, "echo": echo, "logprobs": 0}
    lengths = [2, 4, 1, 3] * (1 + echo) + [2, 1]
    [whole] = (await answer(http, "/v1/completions", **body))["choices"]
    assert whole["logprobs"]["text_offset"] == [at for at, length in enumerate(lengths) for _ in range(length)]
    events = await chunks(http, "/v1/completions", **body)
    parts = [each["logprobs"] for event in events for each in event["choices"] if each["logprobs"]]
    assert [offset for part in parts for offset in part["text_offset"]] == whole["logprobs"]["text_offset"]


async def test_log_probabilities_of_a_streamed_completion(http: httpx2.AsyncClient) -> None:
    events = await chunks(http, "/v1/completions", prompt="abc", max_tokens=4, logprobs=0)
    listed = [event["choices"][0]["logprobs"] for event in events if event["choices"][0]["logprobs"]]
    assert [offset for each in listed for offset in each["text_offset"]] == [0, 1, 2, 3]
    assert [token for each in listed for token in each["tokens"]] == ["a", "b", "c", "a"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("asked", [True, False])
async def test_the_usage_of_a_stream(http: httpx2.AsyncClient, path: str, asked: bool) -> None:
    prompt = {"messages": [{"role": "user", "content": "abc"}]} if "chat" in path else {"prompt": "abc"}
    events = await chunks(http, path, **prompt, max_tokens=2, n=2, stream_options={"include_usage": asked})
    assert all("usage" not in event for event in events if event["choices"])
    assert [event["usage"]["completion_tokens"] for event in events if not event["choices"]] == [4] * asked
    ends = [choice for event in events for choice in event["choices"] if choice["finish_reason"]]
    assert sorted(end["index"] for end in ends) == [0, 1]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_the_usage_of_each_chunk(http: httpx2.AsyncClient, path: str) -> None:
    prompt = {"messages": [{"role": "user", "content": "abc"}]} if "chat" in path else {"prompt": ["abc", "abcde"]}
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = await chunks(http, path, **prompt, max_tokens=3, n=2, stream_options=options)
    whole = await answer(http, path, **prompt, max_tokens=3, n=2)
    last: dict[int, dict[str, int]] = {}
    texts: dict[int, str] = defaultdict(str)
    for event in events[:-1]:
        [choice] = event["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "") if "chat" in path else choice["text"]
        usage = last[choice["index"]] = event["usage"]
        assert usage["completion_tokens"] == len(texts[choice["index"]])  # a token is a byte
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert {usage["completion_tokens"] for usage in last.values()} == {3}
    assert sum(last[index]["prompt_tokens"] for index in range(0, len(last), 2)) == whole["usage"]["prompt_tokens"]
    assert events[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


async def test_a_chat(http: httpx2.AsyncClient) -> None:
    messages = [
        {"role": "developer", "content": "D"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    whole = await answer(http, "/v1/chat/completions", messages=messages, max_completion_tokens=17)
    assert whole["object"] == "chat.completion"
    [choice] = whole["choices"]
    assert choice["message"] == {"role": "assistant", "content": "system: D\nuser: a", "refusal": None}
    assert choice["finish_reason"] == "length"
    longer = await answer(http, "/v1/chat/completions", messages=messages, max_tokens=20)
    assert longer["choices"][0]["message"]["content"].endswith("user: a\nb\n")


async def test_a_chat_without_a_limit_may_fill_the_context(http: httpx2.AsyncClient) -> None:
    whole = await answer(http, "/v1/chat/completions", messages=[{"role": "user", "content": "x"}])
    assert whole["usage"]["total_tokens"] == MAX_MODEL_LEN


async def test_a_streamed_chat(http: httpx2.AsyncClient) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5, "logprobs": True, "top_logprobs": 1}
    events = await chunks(http, "/v1/chat/completions", **body)
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == "user:"
    logprobs = [entry for event in events for entry in (event["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert [entry["token"] for entry in logprobs] == list("user:")
    assert logprobs[0]["top_logprobs"] == [{"token": "u", "logprob": 0, "bytes": [117]}]
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    assert len({event["id"] for event in events}) == 1


async def test_how_a_chat_is_rendered(http: httpx2.AsyncClient) -> None:
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "so"}]
    tokenize = {"messages": messages}
    begun = await answer(http, "/tokenize", **tokenize)
    continued = await answer(http, "/tokenize", **tokenize, continue_final_message=True)
    closed = await answer(http, "/tokenize", **tokenize, add_generation_prompt=False)
    variables = await answer(http, "/tokenize", **tokenize, chat_template_kwargs={"enable_thinking": False})
    texts = [
        (await answer(http, "/detokenize", tokens=each["tokens"]))["prompt"] for each in (begun, continued, closed)
    ]
    conversation = "user: x\nassistant: so"
    assert texts == [f"{conversation}\nassistant:", conversation, f"{conversation}\n"]
    assert variables["count"] == begun["count"] + len("{'enable_thinking': False}\n")
    chat = await answer(http, "/v1/chat/completions", **tokenize, max_tokens=1, continue_final_message=True)
    assert chat["usage"]["prompt_tokens"] == len(conversation)


async def test_a_prompt_is_cut_to_its_end(http: httpx2.AsyncClient) -> None:
    whole = await answer(http, "/v1/completions", prompt="abcdef", truncate_prompt_tokens=2, max_tokens=2, echo=True)
    assert whole["choices"][0]["text"] == "efef"
    fits = await answer(http, "/v1/completions", prompt=[97] * 2 * MAX_MODEL_LEN, truncate_prompt_tokens=-1)
    assert fits["usage"]["prompt_tokens"] == MAX_MODEL_LEN - 1


async def test_log_probabilities_of_a_prompt(http: httpx2.AsyncClient) -> None:
    whole = await answer(http, "/v1/completions", prompt="ab", max_tokens=1, prompt_logprobs=0)
    assert whole["choices"][0]["prompt_logprobs"] == [None, {"98": {"logprob": 0, "rank": 1, "decoded_token": "b"}}]


async def test_a_response(http: httpx2.AsyncClient) -> None:
    whole = await answer(http, "/v1/responses", input="x", instructions="I", max_output_tokens=17, store=False)
    assert whole["object"] == "response"
    assert whole["status"] == "incomplete"
    assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
    assert whole["output"][0]["content"][0]["text"] == "system: I\nuser: x"
    assert whole["usage"]["output_tokens"] == 17


async def test_the_events_of_a_response(http: httpx2.AsyncClient) -> None:
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
    parts = [{"type": "output_text", "text": "so", "annotations": []}]
    body = {"input": [{"role": "user", "content": "x"}, {**item, "content": parts}], "max_output_tokens": 4}
    response = await http.post("/v1/responses", json={**body, "stream": True})
    lines = response.text.splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    assert names == [event["type"] for event in events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta") == "user"
    deltas = [name for name in names if name == "response.output_text.delta"]
    assert names == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *deltas,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]


async def test_a_plain_server(http: httpx2.AsyncClient) -> None:
    whole = await answer(http, "/generate", prompt="abc", max_new_tokens=4, temperature=0)
    assert whole["text"] == "abca"
    assert whole["usage"]["completion_tokens"] == 4
    assert set(whole["timing"]) == {"queued_s", "prefill_s", "first_token_s", "total_s", "constraint_compile_s"}
    events = await chunks(http, "/generate", prompt=[97, 98], max_new_tokens=3)
    assert "".join(event["text"] for event in events) == "aba"
    assert events[-1]["finish_reason"] == "length"


async def test_tokens(http: httpx2.AsyncClient) -> None:
    assert await answer(http, "/tokenize", prompt="hi", return_token_strs=True) == {
        "count": 2,
        "max_model_len": MAX_MODEL_LEN,
        "tokens": [104, 105],
        "token_strs": ["h", "i"],
    }
    assert await answer(http, "/detokenize", tokens=[104, 105]) == {"prompt": "hi"}


async def test_special_tokens_around_a_prompt_are_left_out_on_request(
    http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ByteTokenizer, "within", lambda self, ids: ids[1:])  # as if the first byte were added
    bare: dict[str, Any] = {"prompt": "<ab", "add_special_tokens": False}
    assert (await answer(http, "/tokenize", **bare))["tokens"] == [97, 98]
    assert (await answer(http, "/tokenize", **bare | {"add_special_tokens": True}))["count"] == 3
    for path in ("/v1/completions", "/generate"):
        assert (await answer(http, path, **bare))["usage"]["prompt_tokens"] == 2
        assert (await answer(http, path, prompt="<ab"))["usage"]["prompt_tokens"] == 3
    ids = await answer(http, "/v1/completions", prompt=[60, 97], add_special_tokens=False)
    for path in ("/v1/completions", "/generate"):
        refused = await http.post(path, json={"prompt": [60, 97], "add_special_tokens": True})
        assert refused.json()["error"]["param"] == "add_special_tokens"
    assert ids["usage"]["prompt_tokens"] == 2
    echo = await answer(http, "/v1/completions", **bare, echo=True, logprobs=0, max_tokens=0)
    assert echo["choices"][0]["logprobs"]["tokens"] == ["a", "b"]
    messages = [{"role": "user", "content": "x"}]
    for path in ("/tokenize", "/v1/chat/completions"):
        await answer(http, path, messages=messages, add_special_tokens=False)
        refused = await http.post(path, json={"messages": messages, "add_special_tokens": True})
        assert refused.json()["error"]["param"] == "add_special_tokens"
    empty = await http.post("/v1/completions", json={"prompt": "<", "add_special_tokens": False})
    assert empty.json()["error"]["message"] == "prompt: is empty; a prompt needs at least one token"


async def test_the_texts_of_many_tokens_do_not_hold_up_the_event_loop(
    http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[tuple[list[int], bool]] = []
    decode = ByteTokenizer.decode

    def note(self: ByteTokenizer, ids: list[int], **options: bool) -> str:
        decoded.append((list(ids), threading.current_thread() is threading.main_thread()))
        return decode(self, ids, **options)

    monkeypatch.setattr(ByteTokenizer, "decode", note)
    monkeypatch.setattr("draftline.engine.server.http.endpoints.tokens.LONG", 64)
    found = await answer(http, "/tokenize", prompt="ab" * 40, return_token_strs=True)
    assert found["token_strs"] == ["a", "b"] * 40
    assert sorted(decoded) == [([97], False), ([98], False)]


async def test_the_server_describes_itself(http: httpx2.AsyncClient) -> None:
    assert (await http.get("/")).json()["name"] == "draftline"
    assert set((await http.get("/version")).json()) == {"version"}
    [model] = (await http.get("/v1/models")).json()["data"]
    assert model["id"] == "fake"
    assert model["max_model_len"] == MAX_MODEL_LEN
    assert (await http.get("/v1/models/fake")).json() == model
    await answer(http, "/v1/completions", prompt="a", max_tokens=1)
    metrics = (await http.get("/metrics")).text
    assert 'draftline_requests_total{call="/v1/completions",caller="",code="OK",model="fake"} ' in metrics
    document = (await http.get("/openapi.json")).json()
    assert set(document["paths"]) == {*GENERATING, "/tokenize", "/detokenize"}
    page = PAGE.read_text()
    statuses = {status for row in re.findall(r"^\| ([45][\d, ]+) \|", page, re.MULTILINE) for status in row.split(", ")}
    for path in document["paths"].values():
        assert set(path["post"]["responses"]) == {"200"} | statuses - {"405"}
    text = json.dumps(document)
    names = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert names <= set(document["components"]["schemas"])


async def test_the_page_names_every_field(http: httpx2.AsyncClient) -> None:
    schemas = (await http.get("/openapi.json")).json()["components"]["schemas"]
    bodies = ("CompletionBody", "ChatBody", "ResponseBody", "PlainBody", "TokenizeBody", "DetokenizeBody")
    fields = {field for body in bodies for field in schemas[body]["properties"]}
    tables = [table for name, table in vars(known_fields).items() if name.startswith("INERT")]
    assert len(tables) > 1
    fields |= {name for table in tables for name, inert in table.items() if inert.values is None}
    assert fields - set(re.findall(r"\w+", PAGE.read_text())) == set()


async def test_the_name_of_the_model_can_be_chosen(serve: Any) -> None:
    server = await serve(served_model_name=("gpt", "other"))
    async with http_client(server) as http:
        assert [each["id"] for each in (await http.get("/v1/models")).json()["data"]] == ["gpt", "other"]
        assert (await answer(http, "/v1/completions", prompt="a"))["model"] == "gpt"
        assert (await answer(http, "/v1/completions", prompt="a", model="other"))["model"] == "other"
        assert (await http.post("/v1/completions", json={"prompt": "a", "model": "fake"})).status_code == 404


CONSTRAINED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "a", "response_format": {"type": "json_object"}}),
    ("/v1/completions", {"prompt": "a", "structured_outputs": {"regex": "a+"}}),
    ("/v1/completions", {"prompt": "a", "structured_outputs": {"choice": ["a", "b"]}}),
    ("/v1/completions", {"prompt": "a", "structured_outputs": {"json": {"type": "boolean"}}}),
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "a"}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "b", "schema": {"type": "boolean"}}},
        },
    ),
    ("/v1/responses", {"input": "a", "text": {"format": {"type": "json_schema", "name": "b", "schema": {}}}}),
    ("/generate", {"prompt": "a", "structured_outputs": {"grammar": 'start: "a"'}}),
    (
        "/v1/completions",
        {
            "prompt": "a",
            "structured_outputs": {
                "structural_tag": {"type": "structural_tag", "format": {"type": "const_string", "value": "b"}}
            },
        },
    ),
]


@pytest.mark.parametrize(("path", "body"), CONSTRAINED)
async def test_every_endpoint_passes_constraints_on(
    http: httpx2.AsyncClient, shared_engine: FakeEngine, path: str, body: dict[str, Any]
) -> None:
    closed = ConstraintCompiler(byte_compiler().vocabulary)
    closed.close()
    shared_engine.compile_with(closed)
    refused = await http.post(path, json=body)
    shared_engine.compile_with(byte_compiler())
    assert refused.status_code == 503
    assert (await http.post(path, json=body)).status_code == 200


async def test_a_structural_tag_may_be_longer_than_a_schema(http: httpx2.AsyncClient) -> None:
    """As over gRPC: it has the schemas of many tools."""
    schema = {"type": "boolean", "description": "x" * MAX_CONSTRAINT}
    content = {"type": "json_schema", "json_schema": schema}
    tag = {"type": "structural_tag", "format": {"type": "tag", "begin": "a", "content": content, "end": "b"}}
    response = await http.post("/v1/completions", json={"prompt": "a", "structured_outputs": {"structural_tag": tag}})
    assert response.status_code == 200, response.text
