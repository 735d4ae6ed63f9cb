"""Random bytes and values from a client: the server refuses them by name or serves them, and continues.

A real engine behind a real socket. None of it may end in INTERNAL or UNKNOWN, hang, or leave a block behind.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import grpc
import grpc.aio
import pytest
from examples import examples
from fake_engine import fake_info
from grpc_client import SessionClient, connect, text_request
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from patience import PATIENCE_S
from stepped_engine import SteppedEngine

from draftline.engine.errors import InvalidRequestError
from draftline.engine.server.config import ServerConfig
from draftline.engine.server.grpc.limits import check_constraint, check_detokenize, check_generate, check_tokenize
from draftline.engine.server.limits import MAX_CONSTRAINT, MAX_ENTRIES, MAX_TOOLS
from draftline.engine.server.server import Server
from draftline.v1 import engine_pb2 as pb
from draftline.v1.engine_pb2_grpc import InferenceServiceStub

EXPECTED = {"OK", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "CANCELLED"}

_CUT_S = 0.4
"""Seconds until a call with any content is cut off: what it asks for may never end, and is not read to its end."""

_T = TypeVar("_T")


class Rig:
    """A server on an event loop of its own, since hypothesis calls plain functions many times."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.engine = SteppedEngine()
        self.engine.release()
        self.run(self._start())

    async def _start(self) -> None:
        self.server = Server(ServerConfig(port=0, log_requests=False))
        await self.server.start()
        await self.server.serve(self.engine)
        self.channel = connect(self.server.address)
        self.stub = InferenceServiceStub(self.channel)

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    async def _stop(self) -> None:
        await self.channel.close()
        await self.server.abort()

    def stop(self) -> None:
        self.run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self.engine.close()

    async def raw(self, method: str, message: bytes, timeout_s: float = _CUT_S) -> str:
        """The code that a call with these bytes ends with."""
        call: Any = self.channel.unary_stream(f"/draftline.v1.InferenceService/{method}")(message, timeout=timeout_s)
        return str((await call.code()).name)

    async def session(self, messages: list[pb.SessionRequest]) -> set[int]:
        """The codes of the errors in a session. It must end with OK, and serve a valid last request."""
        client = SessionClient(self.stub)
        for message in messages:
            if message.HasField("submit"):
                message.submit.timeout.FromMilliseconds(round(_CUT_S * 1000))
            await client.call.write(message)
        good = "a good request among bad ones"
        await client.submit(good, text_request("abc", max_tokens=2, ignore_eos=True))
        codes = set()
        served = False
        async for response in client.rest():
            if response.HasField("error"):
                codes.add(response.error.code)
            served |= response.request_id == good and response.HasField("finished")
        assert served
        return codes

    async def freed(self) -> None:
        await self.engine.freed()


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.run(rig.freed())
    assert not rig.engine.stopped.done()
    rig.stop()


FEW = settings(max_examples=examples(80), deadline=None, suppress_health_check=list(HealthCheck))

floats = st.one_of(
    st.floats(width=32, allow_nan=True, allow_infinity=True), st.sampled_from([0.0, -0.0, 1.0, math.nan, -math.inf])
)
uint32 = st.one_of(st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 255, 256, 2**31, 2**32 - 1]))
texts = st.one_of(st.text(max_size=40), st.sampled_from(["", "\0", "\ufffd" * 5, "a" * 600, "🙂" * 90]))


def message(kind: Any, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Messages with any of these fields set."""
    return st.fixed_dictionaries({}, optional=fields).map(lambda values: kind(**values))


sampling = message(
    pb.SamplingParams,
    temperature=floats,
    top_p=floats,
    top_k=uint32,
    min_p=floats,
    repetition_penalty=floats,
    presence_penalty=floats,
    frequency_penalty=floats,
    seed=st.integers(0, 2**64 - 1),
    max_tokens=st.one_of(st.integers(0, 20), uint32),
    min_tokens=uint32,
    stop=st.lists(texts, max_size=70),
    stop_token_ids=st.lists(uint32, max_size=70),
    ignore_eos=st.booleans(),
    logit_bias=st.dictionaries(uint32, floats, max_size=5),
    logprobs=uint32,
    prompt_logprobs=uint32,
    n=st.one_of(st.integers(0, 4), uint32),
)
constraint = message(
    pb.Constraint,
    json_schema=texts,
    regex=texts,
    choice=st.lists(texts, max_size=5).map(lambda choices: pb.Choice(choices=choices)),
    grammar=texts,
    whitespace=st.integers(0, 5),
    best_effort=st.booleans(),
    integers=st.integers(0, 3),
)
prompts = st.one_of(
    st.fixed_dictionaries({"text": texts}),
    st.fixed_dictionaries(
        {"token_ids": st.lists(uint32, max_size=20).map(lambda ids: pb.TokenIds(ids=ids))},
    ),
    st.fixed_dictionaries(
        {
            "chat": st.lists(message(pb.ChatMessage, role=texts, content=texts), max_size=4).map(
                lambda messages: pb.Chat(messages=messages)
            )
        }
    ),
    st.just({}),
)
options = st.fixed_dictionaries(
    {},
    optional={
        "sampling": sampling,
        "constraint": constraint,
        "speculation": message(pb.Speculation, enabled=st.booleans(), draft_tokens=uint32),
        "priority": st.integers(-(2**31), 2**31 - 1),
        "traceparent": texts,
    },
)
requests = st.builds(lambda prompt, rest: pb.GenerateRequest(**prompt, **rest), prompts, options)


@FEW
@given(request=requests)
def test_any_values(rig: Rig, request: pb.GenerateRequest) -> None:
    assert rig.run(rig.raw("Generate", request.SerializeToString())) in EXPECTED


@FEW
@given(method=st.sampled_from(["Generate", "Session", "Tokenize", "Detokenize", "CheckConstraint"]), data=st.binary())
def test_any_bytes(rig: Rig, method: str, data: bytes) -> None:
    assert rig.run(rig.raw(method, data)) in EXPECTED


@FEW
@given(request=requests, at=st.integers(0, 10**6), byte=st.integers(0, 255), cut=st.booleans())
def test_a_changed_byte_or_a_missing_end(rig: Rig, request: pb.GenerateRequest, at: int, byte: int, cut: bool) -> None:
    data = bytearray(request.SerializeToString())
    if data:
        at %= len(data)
        data[at] = byte
        del data[at + 1 if cut else len(data) :]
    assert rig.run(rig.raw("Generate", bytes(data))) in EXPECTED


session_requests = st.one_of(
    st.builds(lambda i, r: pb.SessionRequest(request_id=i, submit=r), texts, requests),
    st.builds(lambda i: pb.SessionRequest(request_id=i, cancel=pb.CancelRequest()), texts),
    st.builds(lambda i: pb.SessionRequest(request_id=i), texts),
)


@settings(FEW, max_examples=examples(30))
@given(messages=st.lists(session_requests, max_size=8))
def test_a_session_survives_any_request(rig: Rig, messages: list[pb.SessionRequest]) -> None:
    bad = {code for status in grpc.StatusCode if status.name not in EXPECTED for code in [status.value[0]]}
    assert not rig.run(rig.session(messages)) & (bad - {grpc.StatusCode.ALREADY_EXISTS.value[0]})


@pytest.mark.parametrize("count", [10**6, 3 * 10**6])
def test_lists_of_millions_are_refused_by_their_length(rig: Rig, count: int) -> None:
    """Packed varints: the smallest messages with that many entries."""
    packed = b"\x61" * count
    field = b"\x0a" + _varint(len(packed)) + packed  # TokenIds.ids
    request = b"\x12" + _varint(len(field)) + field  # GenerateRequest.token_ids
    assert rig.run(rig.raw("Generate", request, PATIENCE_S / 2)) == "INVALID_ARGUMENT"


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


MANY = MAX_ENTRIES + 1
LONG = "x" * (MAX_CONSTRAINT + 1)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.GenerateRequest(text="é" * 2049), "text"),
        (pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1] * 4096)), "token_ids"),
        (pb.GenerateRequest(chat=pb.Chat(messages=[pb.ChatMessage()] * MANY)), "chat.messages"),
        (
            pb.GenerateRequest(chat=pb.Chat(messages=[pb.ChatMessage(role="r" * 65)])),
            "chat.messages[0].role",
        ),
        (
            pb.GenerateRequest(chat=pb.Chat(messages=[pb.ChatMessage(content="x" * 3000)] * 2)),
            "chat.messages",
        ),
        (
            pb.GenerateRequest(chat=pb.Chat(messages=[pb.ChatMessage(tool_calls=[pb.ToolCall()] * MANY)])),
            "chat.messages",
        ),
        (pb.GenerateRequest(chat=pb.Chat(chat_template_kwargs=LONG)), "chat.chat_template_kwargs"),
        (
            pb.GenerateRequest(chat=pb.Chat(tool_choice=pb.ToolChoice(names=["f"] * (MAX_TOOLS + 1)))),
            "chat.tool_choice.names",
        ),
        (
            pb.GenerateRequest(sampling=pb.SamplingParams(allowed_token_ids=[1] * (fake_info().config.vocab_size + 1))),
            "sampling.allowed_token_ids",
        ),
        (pb.GenerateRequest(sampling=pb.SamplingParams(stop=["a"] * MANY)), "sampling.stop"),
        (pb.GenerateRequest(sampling=pb.SamplingParams(stop_token_ids=[1] * MANY)), "sampling.stop_token_ids"),
        (
            pb.GenerateRequest(sampling=pb.SamplingParams(logit_bias=dict.fromkeys(range(MANY), 1.0))),
            "sampling.logit_bias",
        ),
        (pb.GenerateRequest(constraint=pb.Constraint(json_schema=LONG)), "constraint.json_schema"),
        (pb.GenerateRequest(constraint=pb.Constraint(regex=LONG)), "constraint.regex"),
        (pb.GenerateRequest(constraint=pb.Constraint(grammar=LONG)), "constraint.grammar"),
        (
            pb.GenerateRequest(constraint=pb.Constraint(choice=pb.Choice(choices=["a"] * MANY))),
            "constraint.choice.choices",
        ),
        (
            pb.GenerateRequest(constraint=pb.Constraint(choice=pb.Choice(choices=[LONG[: 2**17]] * 3))),
            "constraint.choice.choices",
        ),
        (pb.GenerateRequest(traceparent="0" * 257), "traceparent"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_list_and_string_has_a_limit(request_: pb.GenerateRequest, field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_generate(request_, fake_info())
    assert [violation.field for violation in caught.value.violations] == [field]


def test_a_request_within_the_limits_passes() -> None:
    check_generate(pb.GenerateRequest(text="x" * 4096), fake_info())
    check_constraint(pb.Constraint(regex=LONG[:-1]))
    with pytest.raises(InvalidRequestError):
        check_detokenize(pb.DetokenizeRequest(token_ids=[1] * (2**20 + 1)))
    with pytest.raises(InvalidRequestError):
        check_tokenize(pb.TokenizeRequest(text="x" * 2**21), fake_info())
