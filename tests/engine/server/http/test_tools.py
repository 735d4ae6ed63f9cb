"""Tools over HTTP with OpenAI's client, and over gRPC with the client, of a tiny random model: calls always match."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import openai
import pytest
from byte_tokenizer import write_byte_model
from served_on_a_thread import served_on_a_thread

from draftline import Client, SamplingParams
from draftline.engine.config import EngineConfig
from draftline.engine.server.server import Server
from draftline.engine.threaded_engine import start_engine

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["city", "unit"],
}
TOOL: Any = {
    "type": "function",
    "function": {"name": "get_weather", "description": "The weather.", "parameters": SCHEMA},
}
OTHER: Any = {"type": "function", "function": {"name": "now"}}
MESSAGES: Any = [{"role": "user", "content": "What is the weather in Paris, in celsius?"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of a random model over bytes, on a thread of its own."""
    model = write_byte_model(tmp_path_factory.mktemp("model"), positions=2048)
    engine = start_engine(EngineConfig(model=model, load_format="dummy", device="cpu", max_num_seqs=8))
    with served_on_a_thread(engine, served_model_name=("bytes",)) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://{server.http_address}/v1", api_key="unused", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, messages: Any = MESSAGES, **options: Any) -> Any:
    options = {"tools": [TOOL, OTHER], "max_completion_tokens": 200, "temperature": 0, **options}
    return client.chat.completions.create(model="bytes", messages=messages, **options)


def check(call: Any) -> None:
    schema = {"get_weather": SCHEMA, "now": {"type": "object", "maxProperties": 0}}[call.function.name]
    assert jsonschema_rs.is_valid(schema, json.loads(call.function.arguments))


def test_a_required_call_is_made(client: openai.OpenAI) -> None:
    [choice] = ask(client, tool_choice="required", parallel_tool_calls=False).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    [call] = choice.message.tool_calls
    check(call)


def test_a_named_tool_is_called_in_every_output(client: openai.OpenAI) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    answer = ask(client, tool_choice=named, n=3, temperature=1, seed=7)
    ids = [call.id for choice in answer.choices for call in choice.message.tool_calls]
    assert len(set(ids)) == 3
    for choice in answer.choices:
        [call] = choice.message.tool_calls
        assert call.function.name == "get_weather"
        check(call)


def test_allowed_tools_alone_are_called(client: openai.OpenAI) -> None:
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "now"}}]}
    choice: Any = {"type": "allowed_tools", "allowed_tools": allowed}
    answer = ask(client, tool_choice=choice, n=3, temperature=1, seed=7)
    assert {call.function.name for choice in answer.choices for call in choice.message.tool_calls} == {"now"}
    functions: Any = [{"type": "function", **tool["function"]} for tool in (TOOL, OTHER)]
    choice = {"type": "allowed_tools", "mode": "required", "tools": functions[1:]}
    response = client.responses.create(
        model="bytes", input=MESSAGES, tools=functions, tool_choice=choice, temperature=0, parallel_tool_calls=False
    )
    [call] = response.output
    assert (call.type, call.name) == ("function_call", "now")
    assert response.tool_choice.to_dict() == choice


def test_streamed_parts_are_the_whole_call(client: openai.OpenAI) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    [whole] = ask(client, tool_choice=named).choices[0].message.tool_calls
    name, parts, reasons = "", [], []
    for chunk in ask(client, tool_choice=named, stream=True):
        [choice] = chunk.choices
        reasons.append(choice.finish_reason)
        for part in choice.delta.tool_calls or ():
            assert part.index == 0
            name += part.function.name or ""
            parts.append(part.function.arguments)
    assert reasons[-1] == "tool_calls"
    assert (name, "".join(parts)) == ("get_weather", whole.function.arguments)
    assert len(parts) > 2


def test_results_are_fed_back(client: openai.OpenAI) -> None:
    message = ask(client, tool_choice="required", parallel_tool_calls=False).choices[0].message
    [call] = message.tool_calls
    # LangChain.js, instructor and LiteLLM send the name, too.
    result = {"role": "tool", "tool_call_id": call.id, "content": "18 degrees", "name": call.function.name}
    history = [{"role": "developer", "content": "Be brief."}, *MESSAGES, message.to_dict(), result]
    [choice] = ask(client, history, tool_choice="none", max_completion_tokens=20).choices
    assert choice.message.content
    assert choice.message.tool_calls is None


def test_a_tool_may_ask_for_its_prefix_to_be_cached(client: openai.OpenAI) -> None:
    """LiteLLM sends on what was written for Anthropic."""
    cached = {"cache_control": {"type": "ephemeral"}}
    [choice] = ask(client, tools=[OTHER | cached, {**TOOL, "function": TOOL["function"] | cached}]).choices
    assert choice.finish_reason
    tools: Any = [{"type": "function", "name": "now", **cached}]
    assert client.responses.create(model="bytes", input="a", tools=tools, max_output_tokens=1).tools[0].name == "now"


def test_text_without_a_call_is_text(client: openai.OpenAI) -> None:
    with_tools = ask(client, [{"role": "user", "content": "Hi!"}], tool_choice="none", tools=[OTHER]).choices[0]
    assert with_tools.message.content
    assert with_tools.finish_reason in ("stop", "length")


def test_a_response_without_tools_may_say_how_many_calls_it_allows(client: openai.OpenAI) -> None:
    """As at OpenAI, which refuses it in chats alone."""
    answer = client.responses.create(model="bytes", input="Hi!", max_output_tokens=2, parallel_tool_calls=False)
    assert answer.parallel_tool_calls is False


@pytest.mark.parametrize(
    ("options", "param", "problem"),
    [
        (
            {"tools": [OTHER, {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"$ref": "http://x/y"}}}}}]},
            "tools[1].function.parameters#/properties/a",
            "http://x/y",
        ),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", "is no name"),
        ({"tools": [OTHER, OTHER]}, "tools[1].function.name", "is there twice"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]}, "tools[0].function.parameters#/type", "object"),
        ({"tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice", "no tool 'g'"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice", "there are no tools"),
        ({"tool_choice": {"type": "custom", "custom": {"name": "now"}}}, "tool_choice.type", "Input should be 'function' or 'allowed_tools', not 'custom'"),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "none", "tools": [OTHER]}}}, "tool_choice.allowed_tools.mode", "Input should be 'auto' or 'required', not 'none'"),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}}, "tool_choice.allowed_tools.tools", "is empty"),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [OTHER, {"type": "custom", "custom": {"name": "x"}}]}}}, "tool_choice.allowed_tools.tools[1].type", "Input should be 'function', not 'custom'"),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "g"}}]}}}, "tool_choice.allowed_tools.tools[0].function.name", "no tool 'g'"),
        ({"tools": [OTHER], "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"$ref": "#/a"}}}, "tool_choice": "none"}, "response_format.json_schema.schema#/$ref", "points to nothing"),
        ({"extra_body": {"max_reasoning_tokens": 5}}, "max_reasoning_tokens", "does not reason"),
    ],
)  # fmt: skip
def test_errors_name_the_place(client: openai.OpenAI, options: Any, param: str, problem: str) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        ask(client, **options)
    assert error.value.param is not None
    assert error.value.param.startswith(param)
    assert problem in error.value.message


def test_responses_call_tools_too(client: openai.OpenAI) -> None:
    unset = {"defer_loading": False, "allowed_callers": ["direct"], "async": False, "output_schema": None}
    tool: Any = {"type": "function", **TOOL["function"], **unset}
    asked: Any = {"model": "bytes", "tools": [tool], "temperature": 0, "max_output_tokens": 200}
    first: Any = {**asked, "input": MESSAGES, "tool_choice": "required", "parallel_tool_calls": False}
    answer = client.responses.create(**first)
    [call] = answer.output
    assert (answer.status, call.type, call.name) == ("completed", "function_call", "get_weather")
    assert jsonschema_rs.is_valid(SCHEMA, json.loads(call.arguments))
    with client.responses.stream(**first) as stream:
        names = [event.type for event in stream]
        [streamed] = stream.get_final_response().output
    assert streamed.arguments == call.arguments
    assert names.count("response.function_call_arguments.done") == 1
    assert names.count("response.function_call_arguments.delta") > 2
    texts: list[str] = []
    for given in (
        {"output": "18 degrees"},
        {"output": [{"type": "input_text", "text": "18 degrees"}], "name": call.name},
    ):
        result: Any = {"type": "function_call_output", "call_id": call.call_id, **given}
        history = [*MESSAGES, call.to_dict(), result]
        again: Any = {**asked, "max_output_tokens": 20, "tool_choice": "none"}
        [message] = client.responses.create(**again, input=history).output
        assert message.type == "message"
        texts.append(message.content[0].text)
    assert texts[0]
    assert texts[0] == texts[1]


def test_the_grpc_client_gets_the_same_call(server: Server, client: openai.OpenAI) -> None:
    [want] = ask(client, tool_choice="required", parallel_tool_calls=False).choices[0].message.tool_calls
    sampling = SamplingParams(temperature=0, max_tokens=200)
    with Client(server.address) as grpc:
        [answer] = grpc.chat(MESSAGES, sampling, tools=[TOOL, OTHER], tool_choice="required", parallel_tool_calls=False)
    [output] = answer.outputs
    [call] = output.tool_calls
    assert (call.name, call.arguments) == (want.function.name, want.function.arguments)
    assert output.text == ""
    with pytest.raises(Exception, match="calls tools"):
        _ = output.parsed
