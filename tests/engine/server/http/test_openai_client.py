"""OpenAI's own client against the server, unmodified; a real engine behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import pytest
import pytest_asyncio
from fake_engine import fake_info
from fake_tokenizer import ByteTokenizer
from patience import PATIENCE_S
from pydantic import BaseModel, ConfigDict, TypeAdapter
from stepped_engine import SteppedEngine

from draftline.engine.chat.calls import ToolCall, ToolCallDelta
from draftline.engine.errors import QueueFullError
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
from draftline.engine.server.config import ServerConfig
from draftline.engine.server.http.body import parse
from draftline.engine.server.http.endpoints.responses import LOGPROBS, ResponseAnswer, ResponseBody
from draftline.engine.server.server import Server

if TYPE_CHECKING:  # it takes a second to import, which processes without these tests need not
    import openai

pytestmark = pytest.mark.asyncio(loop_scope="module")

MESSAGES: Any = [{"role": "user", "content": "a"}]


class Answer(BaseModel):
    """What the tiny model is asked for."""

    model_config = ConfigDict(extra="forbid")

    yes: bool
    kind: Literal["a", "b"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Server]:
    engine = SteppedEngine(num_slots=8, max_waiting=256, max_waiting_tokens=1 << 16)
    engine.release()
    server = Server(ServerConfig(port=0, http_port=0, log_requests=False))
    await server.start()
    await server.serve(engine)
    yield server
    await server.abort()
    engine.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(server: Server) -> AsyncIterator[openai.AsyncOpenAI]:
    import openai

    async with openai.AsyncOpenAI(base_url=f"http://{server.http_address}/v1", api_key="unused", max_retries=0) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model(client: openai.AsyncOpenAI) -> str:
    return (await client.models.list()).data[0].id


async def test_a_chat_and_its_stream_are_the_same(client: openai.AsyncOpenAI, model: str) -> None:
    options: Any = {"model": model, "messages": MESSAGES, "max_completion_tokens": 9, "seed": 1, "logprobs": True}
    whole = await client.chat.completions.create(**options)
    stream = await client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    for each in (whole, *chunks):
        type(each).model_validate(each.to_dict())  # the client itself checks nothing
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].system_fingerprint == whole.system_fingerprint
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    entries = [
        e for chunk in chunks for choice in chunk.choices if choice.logprobs for e in choice.logprobs.content or ()
    ]
    assert whole.choices[0].logprobs is not None
    assert entries == whole.choices[0].logprobs.content


async def test_a_seed_repeats_and_n_differs(client: openai.AsyncOpenAI, model: str) -> None:
    options: Any = {"model": model, "messages": MESSAGES, "max_tokens": 12}
    first = await client.chat.completions.create(**options, seed=5, n=3)
    again = await client.chat.completions.create(**options, seed=5, n=3)
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in again.choices]
    assert len(set(texts)) == 3
    second = await client.chat.completions.create(**options, seed=6)
    assert second.choices[0].message.content == texts[1]


async def test_parse_into_pydantic(client: openai.AsyncOpenAI, model: str) -> None:
    chat = await client.chat.completions.parse(model=model, messages=MESSAGES, response_format=Answer, max_tokens=80)
    assert isinstance(chat.choices[0].message.parsed, Answer)
    response = await client.responses.parse(model=model, input="a", text_format=Answer, max_output_tokens=80)
    assert isinstance(response.output_parsed, Answer)
    assert response.status == "completed"


async def test_a_completion_with_a_response_format(client: openai.AsyncOpenAI, model: str) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": Answer.model_json_schema()}}
    answer = await client.completions.create(
        model=model, prompt="a", max_tokens=100, seed=1, extra_body={"response_format": form}
    )
    Answer.model_validate_json(answer.choices[0].text)


async def test_constraints_in_vllms_form(client: openai.AsyncOpenAI, model: str) -> None:
    answer = await client.completions.create(
        model=model, prompt="a", max_tokens=20, extra_body={"structured_outputs": {"choice": ["yes", "no"]}, "top_k": 5}
    )
    assert answer.choices[0].text in ("yes", "no")


async def test_the_events_of_a_response(client: openai.AsyncOpenAI, model: str) -> None:
    async with client.responses.stream(model=model, input="a", text_format=Answer, max_output_tokens=80) as stream:
        deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert "".join(deltas) == final.output_text
    type(final).model_validate(final.to_dict())
    assert isinstance(final.output_parsed, Answer)
    assert final.usage is not None
    assert final.usage.output_tokens > 0


END = Finished(
    0,
    FinishReason.EOS,
    "",
    Usage(1, 0, 5),
    SpeculationStats(),
    Timing(0, 0, 0, 0),
    None,
    1,
    tool_calls=(ToolCall("id", "f", "{}"),),
    reasoning_tokens=2,
)


@pytest.mark.parametrize(
    ("reason", "last"),
    [
        (FinishReason.EOS, "completed"),
        (FinishReason.LENGTH, "incomplete"),
        (FinishReason.CANCELLED, "failed"),
        (None, "failed"),
    ],
)
async def test_every_event_of_a_response_has_its_type(reason: FinishReason | None, last: str) -> None:
    """Text with log-probabilities, reasoning and a call, by the types of OpenAI's package."""
    from openai.types.responses import ResponseStreamEvent

    known: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    tool = {"type": "function", "name": "f"}
    asked = {"input": "x", "tools": [tool], "tool_choice": tool, "include": [LOGPROBS], "top_logprobs": 1}
    engine: Any = SimpleNamespace(tokenizer=ByteTokenizer(), info=fake_info())
    nothing: Any = None
    answer = ResponseAnswer(parse(ResponseBody, asked), nothing, engine, "m")
    position = PositionLogprobs(TokenLogprob(97, -1.0, 1), (TokenLogprob(98, -0.5, 1),))
    updates = (
        Delta(0, (97,), "", (position,), (), "so"),
        Delta(0, (97,), "a", (position,)),
        Delta(0, (1,), "", tool_calls=(ToolCallDelta(0, "id", "f", "{"),)),
        Delta(0, (1,), "", tool_calls=(ToolCallDelta(0, arguments="}"),)),
    )
    sent = [*answer.begin(), *(each for update in updates for each in answer.update(0, update))]
    if reason is None:
        sent += answer.fail(QueueFullError("full", 1.0))
    else:
        sent += [*answer.update(0, replace(END, finish_reason=reason)), *answer.end()]
    events = [known.validate_json(each.partition(b"data: ")[2]) for each in sent]
    assert [each.sequence_number for each in events] == list(range(len(events)))
    assert events[-1].type == f"response.{last}"
    response = events[-1].response
    assert response.status == last
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
    assert (response.error is not None) == (last == "failed")
    if reason is None:
        assert response.error.code == "rate_limit_exceeded"
    if last == "completed":
        assert {each.type.partition(".")[2] for each in events} >= {
            *("reasoning_text.delta", "reasoning_text.done", "output_text.delta", "output_text.done"),
            *("function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        }


@pytest.mark.parametrize("requests", [32, pytest.param(128, marks=pytest.mark.slow)])
async def test_many_at_once(client: openai.AsyncOpenAI, model: str, requests: int) -> None:
    async def ask(seed: int) -> str:
        stream = await client.completions.create(model=model, prompt="abc", max_tokens=4, seed=seed, stream=True)
        return "".join([chunk.choices[0].text async for chunk in stream])

    many = await asyncio.gather(*(ask(seed % 4) for seed in range(requests)))
    assert many == [await ask(seed) for seed in range(4)] * (requests // 4)


async def test_a_stream_that_is_left_is_cancelled(client: openai.AsyncOpenAI, model: str, server: Server) -> None:
    stream = await client.completions.create(
        model=model, prompt="abc", max_tokens=100, stream=True, extra_body={"ignore_eos": True}
    )
    async for _ in stream:
        break
    await stream.close()
    async with asyncio.timeout(PATIENCE_S):
        await server.wait_idle()


async def test_errors_are_the_clients_own(client: openai.AsyncOpenAI, model: str) -> None:
    import openai

    with pytest.raises(openai.BadRequestError) as wrong:
        await client.chat.completions.create(model=model, messages=MESSAGES, temperature=-1)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.NotFoundError, match="this server serves"):
        await client.chat.completions.create(model="gpt-9", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError) as tools:
        await client.chat.completions.create(
            model=model, messages=MESSAGES, tools=[{"type": "function", "function": {"name": "f"}}]
        )
    assert tools.value.param == "tools"
