"""The calls other than Session, over a real socket: their responses and their errors."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import pytest
from fake_engine import MAX_MODEL_LEN, VOCAB, ByteTokenizer, FakeEngine
from google.protobuf.duration_pb2 import Duration
from grpc_client import AsyncStub, Outcome, retry_delay_s, status_of, text_request, violations
from patience import DEADLINE_S

from draftline import __version__
from draftline.engine.server.grpc import convert
from draftline.engine.server.limits import MAX_CUT
from draftline.engine.server.server import Server
from draftline.engine.server.tokenizer_pool import LONG
from draftline.v1 import engine_pb2 as pb
from draftline.v1.engine_pb2_grpc import InferenceServiceStub

INVALID_ARGUMENT = grpc.StatusCode.INVALID_ARGUMENT


async def generate(stub: AsyncStub, request: pb.GenerateRequest, timeout: float | None = None) -> dict[int, Outcome]:
    outcomes: dict[int, Outcome] = {}
    async for response in stub.Generate(request, timeout=timeout):
        if response.HasField("delta"):
            outcomes.setdefault(response.delta.index, Outcome()).add(response.delta)
        else:
            outcomes.setdefault(response.finished.index, Outcome()).end(response.finished)
    return outcomes


async def refused(stub: AsyncStub, request: pb.GenerateRequest) -> dict[str, str]:
    """The violations for which a request is refused."""
    with pytest.raises(grpc.RpcError) as caught:
        await generate(stub, request)
    status = status_of(caught.value)
    assert status.code == INVALID_ARGUMENT.value[0]
    return violations(status)


async def test_generate(stub: AsyncStub) -> None:
    [outcome] = (await generate(stub, text_request("abc", max_tokens=5, seed=3))).values()
    assert (outcome.text, outcome.token_ids) == ("abcab", list(b"abcab"))
    assert outcome.finished is not None
    assert (outcome.reason, outcome.finished.seed) == ("FINISH_REASON_LENGTH", 3)


async def test_generate_from_token_ids_and_from_a_chat(stub: AsyncStub) -> None:
    ids = pb.GenerateRequest(token_ids=pb.TokenIds(ids=b"xyz"), sampling=pb.SamplingParams(max_tokens=3))
    assert (await generate(stub, ids))[0].text == "xyz"
    chat = pb.Chat(messages=[pb.ChatMessage(role="system", content="s"), pb.ChatMessage(role="user", content="u")])
    request = pb.GenerateRequest(chat=chat, sampling=pb.SamplingParams(max_tokens=27))
    assert (await generate(stub, request))[0].text == "system: s\nuser: u\nassistant:"[:27]


async def test_generate_n(stub: AsyncStub) -> None:
    outcomes = await generate(stub, text_request("ab", n=4, seed=2**64 - 2))
    assert {index: outcome.text for index, outcome in outcomes.items()} == dict.fromkeys(range(4), "abab")
    assert [outcomes[index].finished.seed for index in range(4)] == [2**64 - 2, 2**64 - 1, 0, 1]  # type: ignore[union-attr]


async def test_unset_and_zero_are_different(stub: AsyncStub) -> None:
    [unset] = (await generate(stub, pb.GenerateRequest(text="a"))).values()
    assert len(unset.token_ids) == 256
    assert await refused(stub, pb.GenerateRequest(text="a", sampling=pb.SamplingParams(max_tokens=0)))
    greedy = await generate(stub, text_request("a", temperature=0.0, seed=0))
    assert greedy[0].finished is not None
    assert greedy[0].finished.seed == 0


async def test_logprobs(stub: AsyncStub) -> None:
    request = text_request("ab", max_tokens=1, logprobs=2, prompt_logprobs=0)
    responses = [response async for response in stub.Generate(request)]
    delta = responses[0].delta
    [chosen] = delta.logprobs
    assert (chosen.token_id, chosen.logprob, chosen.rank) == (ord("a"), 0.0, 1)
    assert list(chosen.top) == [pb.TopLogprob(token_id=97, logprob=0.0), pb.TopLogprob(token_id=98, logprob=-0.5)]
    assert [position.token_id for position in delta.prompt_logprobs] == [ord("b")]
    assert not delta.prompt_logprobs[0].top


async def test_many_logprobs_come_in_messages_that_clients_take(stub: AsyncStub) -> None:
    """With 20 each they would be larger than the 4 MB that a client accepts by default."""
    prompt = bytes(1 + index % 255 for index in range(MAX_MODEL_LEN - 1))
    sampling = pb.SamplingParams(max_tokens=1, logprobs=20, prompt_logprobs=20)
    request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=prompt), sampling=sampling)
    deltas = [r.delta async for r in stub.Generate(request) if r.HasField("delta")]
    assert [position.token_id for delta in deltas for position in delta.prompt_logprobs] == list(prompt[1:])
    assert [token for delta in deltas for token in delta.token_ids] == [prompt[0]]
    assert sum(len(delta.logprobs) for delta in deltas) == 1
    assert max(len(d.prompt_logprobs) + len(d.logprobs) for d in deltas) <= convert.POSITIONS_PER_MESSAGE


async def test_a_deadline_ends_the_call_and_the_request(stub: AsyncStub, engine: FakeEngine) -> None:
    engine.hold()
    with pytest.raises(grpc.RpcError) as caught:
        await generate(stub, text_request("a"), timeout=DEADLINE_S)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    while not engine.cancelled:
        await asyncio.sleep(0.001)
    engine.release()
    await asyncio.to_thread(engine.wait_idle)


async def test_a_cancelled_call_ends_the_request(stub: AsyncStub, engine: FakeEngine) -> None:
    engine.hold()
    call = stub.Generate(text_request("a"))
    reading = asyncio.create_task(call.read())
    await asyncio.to_thread(engine.wait_running, 1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    while not engine.cancelled:
        await asyncio.sleep(0.001)
    engine.release()
    await asyncio.to_thread(engine.wait_idle)


async def test_queue_full(make_engine: Callable[..., FakeEngine], server: Server, channel: grpc.aio.Channel) -> None:
    await server.serve(make_engine(max_waiting=0))
    with pytest.raises(grpc.RpcError) as caught:
        await generate(InferenceServiceStub(channel), text_request("a"))
    status = status_of(caught.value)
    assert status.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    assert retry_delay_s(status) == 1.5


@pytest.mark.parametrize("prompt", ["FAIL", "CRASH"])
async def test_faults_are_internal_without_their_causes(prompt: str, stub: AsyncStub) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        await generate(stub, text_request(prompt))
    status = status_of(caught.value)
    assert status.code == grpc.StatusCode.INTERNAL.value[0]
    assert "secret" not in str(caught.value)
    assert (await generate(stub, text_request("a")))[0].text == "aaaa"


async def test_an_engine_that_has_stopped_is_unavailable(stub: AsyncStub, engine: FakeEngine) -> None:
    engine.hold()
    running = asyncio.create_task(generate(stub, text_request("a")))
    await asyncio.to_thread(engine.wait_running, 1)
    await asyncio.to_thread(engine.close)
    for call in (running, generate(stub, text_request("a"))):
        with pytest.raises(grpc.RpcError) as caught:
            await call
        assert status_of(caught.value).code == grpc.StatusCode.UNAVAILABLE.value[0]


CONSTRAINED = pb.Constraint(regex="a+")


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        pytest.param(pb.GenerateRequest(), "prompt", id="no prompt"),
        pytest.param(pb.GenerateRequest(text=""), "text", id="empty text"),
        pytest.param(pb.GenerateRequest(token_ids=pb.TokenIds()), "token_ids", id="no tokens"),
        pytest.param(pb.GenerateRequest(chat=pb.Chat()), "chat.messages", id="no messages"),
        pytest.param(
            pb.GenerateRequest(chat=pb.Chat(messages=[pb.ChatMessage(role="nobody", content="x")])),
            "chat.messages",
            id="unknown role",
        ),
        pytest.param(
            pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1, VOCAB])), "token_ids.ids[1]", id="token out of range"
        ),
        pytest.param(text_request("x" * MAX_MODEL_LEN), "text", id="prompt too long"),
        pytest.param(text_request("a", temperature=-0.5), "sampling.temperature", id="temperature"),
        pytest.param(text_request("a", temperature=math.nan), "sampling.temperature", id="temperature nan"),
        pytest.param(text_request("a", temperature=math.inf), "sampling.temperature", id="temperature inf"),
        pytest.param(text_request("a", top_p=0.0), "sampling.top_p", id="top_p zero"),
        pytest.param(text_request("a", top_p=1.5), "sampling.top_p", id="top_p"),
        pytest.param(text_request("a", top_k=2**32 - 1), "sampling.top_k", id="top_k"),
        pytest.param(text_request("a", min_p=2.0), "sampling.min_p", id="min_p"),
        pytest.param(text_request("a", repetition_penalty=0.0), "sampling.repetition_penalty", id="repetition"),
        pytest.param(text_request("a", presence_penalty=3.0), "sampling.presence_penalty", id="presence"),
        pytest.param(text_request("a", frequency_penalty=-3.0), "sampling.frequency_penalty", id="frequency"),
        pytest.param(text_request("a", stop=["ok", ""]), "sampling.stop[1]", id="empty stop"),
        pytest.param(text_request("a", stop=["s"] * 65), "sampling.stop", id="too many stops"),
        pytest.param(text_request("a", stop_token_ids=[VOCAB]), "sampling.stop_token_ids[0]", id="stop token"),
        pytest.param(text_request("a", logit_bias={3: 1e6}), "sampling.logit_bias[3]", id="bias"),
        pytest.param(
            pb.GenerateRequest(chat=pb.Chat(messages=[pb.ChatMessage(role="user")])),
            "chat.messages[0].content",
            id="no content",
        ),
        pytest.param(
            pb.GenerateRequest(chat=pb.Chat(messages=[pb.ChatMessage(content="a")])),
            "chat.messages[0].role",
            id="no role",
        ),
        pytest.param(
            pb.GenerateRequest(
                chat=pb.Chat(messages=[pb.ChatMessage(role="user", content="a")], continue_final_message=True)
            ),
            "chat.messages",
            id="nothing to continue",
        ),
        pytest.param(
            pb.GenerateRequest(
                chat=pb.Chat(messages=[pb.ChatMessage(role="user", content="a")], chat_template_kwargs="[1]")
            ),
            "chat.chat_template_kwargs",
            id="no variables",
        ),
        pytest.param(text_request("a", allowed_token_ids=[999]), "sampling.allowed_token_ids[0]", id="allowed ids"),
        pytest.param(text_request("a", bad_words=["a" * 256, "b" * 256]), "sampling.bad_words", id="bad words"),
        pytest.param(text_request("a", logprobs=21), "sampling.logprobs", id="logprobs"),
        pytest.param(text_request("a", prompt_logprobs=21), "sampling.prompt_logprobs", id="prompt_logprobs"),
        pytest.param(text_request("a", n=0), "sampling.n", id="n zero"),
        pytest.param(text_request("a", n=65), "sampling.n", id="n"),
        pytest.param(
            pb.GenerateRequest(text="a", speculation=pb.Speculation(draft_tokens=17)),
            "speculation.draft_tokens",
            id="draft tokens",
        ),
        pytest.param(
            pb.GenerateRequest(text="a", speculation=pb.Speculation(enabled=True)),
            "speculation.enabled",
            id="no drafter",
        ),
        pytest.param(pb.GenerateRequest(text="a", constraint=pb.Constraint()), "constraint", id="no kind"),
        pytest.param(
            pb.GenerateRequest(text="a", constraint=pb.Constraint(regex="a", whitespace=9)),  # type: ignore[arg-type]
            "constraint.whitespace",
            id="unknown enum",
        ),
        pytest.param(
            pb.GenerateRequest(text="a", constraint=pb.Constraint(regex="a", integers=9)),  # type: ignore[arg-type]
            "constraint.integers",
            id="unknown integers",
        ),
    ],
)
async def test_a_bad_field_is_named(request_: pb.GenerateRequest, field: str, stub: AsyncStub) -> None:
    assert list(await refused(stub, request_)) == [field]


async def test_contradicting_fields_are_both_named(stub: AsyncStub) -> None:
    found = await refused(stub, text_request("a", min_tokens=5))
    assert found == dict.fromkeys(
        ("sampling.min_tokens", "sampling.max_tokens"), "min_tokens (5) exceeds max_tokens (4)"
    )


async def test_all_bad_fields_are_named_at_once(stub: AsyncStub) -> None:
    sampling = pb.SamplingParams(top_p=2.0, n=0)
    request = pb.GenerateRequest(
        sampling=sampling, constraint=pb.Constraint(), speculation=pb.Speculation(draft_tokens=99)
    )
    fields = await refused(stub, request)
    assert set(fields) == {"prompt", "sampling.top_p", "sampling.n", "constraint", "speculation.draft_tokens"}
    assert fields["sampling.top_p"] == "Input should be less than or equal to 1, not 2"


async def test_a_status_with_very_many_violations_still_reaches_the_client(stub: AsyncStub) -> None:
    """Trailers above 8 KiB would be dropped by the client, and the whole status with them."""
    bad = pb.SamplingParams(logit_bias={key: 1e9 for key in range(300)}, stop=["é" * 2000] * 60)
    fields = await refused(stub, pb.GenerateRequest(text="a", sampling=bad))
    assert 1 < len(fields) < 360


async def test_unknown_fields_are_ignored(channel: grpc.aio.Channel, stub: AsyncStub) -> None:
    message = text_request("ab").SerializeToString() + b"\xfa\x7f\x03new"  # field 2047, a string
    calls: grpc.aio.UnaryStreamMultiCallable[bytes, pb.GenerateResponse] = channel.unary_stream(
        "/draftline.v1.InferenceService/Generate", response_deserializer=pb.GenerateResponse.FromString
    )
    text = "".join([response.delta.text async for response in calls(message)])
    assert text == "abab"


async def test_a_message_larger_than_the_limit_is_refused(stub: AsyncStub) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        await generate(stub, text_request("x" * (17 << 20)))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_tokenize_and_detokenize(stub: AsyncStub) -> None:
    ids = (await stub.Tokenize(pb.TokenizeRequest(text="héllo"))).token_ids
    assert list(ids) == list("héllo".encode())
    assert (await stub.Detokenize(pb.DetokenizeRequest(token_ids=ids))).text == "héllo"
    assert not (await stub.Tokenize(pb.TokenizeRequest(text=""))).token_ids
    assert (await stub.Detokenize(pb.DetokenizeRequest())).text == ""
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="u")])
    ids = (await stub.Tokenize(pb.TokenizeRequest(chat=chat))).token_ids
    assert list(ids) == ByteTokenizer().encode("user: u\nassistant:")


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        pytest.param(pb.TokenizeRequest(), "prompt", id="nothing"),
        pytest.param(pb.TokenizeRequest(chat=pb.Chat()), "chat.messages", id="no messages"),
        pytest.param(
            pb.TokenizeRequest(chat=pb.Chat(messages=[pb.ChatMessage(role="x", content="y")])),
            "chat.messages",
            id="unknown role",
        ),
    ],
)
async def test_an_invalid_text_or_chat_is_not_tokenized(
    request_: pb.TokenizeRequest, field: str, stub: AsyncStub
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        await stub.Tokenize(request_)
    assert list(violations(status_of(caught.value))) == [field]


@pytest.mark.parametrize(
    ("options", "field", "problem"),
    [
        ({"tool_choice": {"mode": "MODE_REQUIRED"}}, "tool_choice", "is required, but there are no tools"),
        ({"tool_choice": {"names": ["f"]}}, "tool_choice", "there is no tool 'f'"),
        ({"parallel_tool_calls": True}, "parallel_tool_calls", "is set, but there are no tools"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls", "is set, but there are no tools"),
        ({"max_reasoning_tokens": 8}, "max_reasoning_tokens", "does not reason"),
    ],
)
async def test_a_chat_that_cannot_generate_is_not_tokenized(
    options: dict[str, Any], field: str, problem: str, stub: AsyncStub
) -> None:
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="a")], **options)
    problems = []
    for call in (
        stub.Tokenize(pb.TokenizeRequest(chat=chat)),
        anext(aiter(stub.Generate(pb.GenerateRequest(chat=chat)))),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            await call
        problems.append(violations(status_of(caught.value)))
    assert problems[0] == problems[1]
    assert problem in problems[0][f"chat.{field}"]


async def test_long_texts_are_tokenized_in_another_process(stub: AsyncStub, monkeypatch: pytest.MonkeyPatch) -> None:
    here = []
    encode = ByteTokenizer.encode

    def watched(self: ByteTokenizer, text: str) -> list[int]:
        here.append(len(text))
        return encode(self, text)

    monkeypatch.setattr(ByteTokenizer, "encode", watched)
    for size in (LONG - 1, LONG):
        response = await stub.Tokenize(pb.TokenizeRequest(text="x" * size))
        assert response.token_ids == [ord("x")] * size
    assert here == [LONG - 1]


async def test_a_long_prompt_generates_as_a_short_one_does(stub: AsyncStub, engine: FakeEngine) -> None:
    """Its errors name the same fields."""
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="x" * LONG)])
    with pytest.raises(grpc.RpcError) as caught:
        await anext(aiter(stub.Generate(pb.GenerateRequest(chat=chat))))
    assert "the prompt is too long: 4113 tokens, but at most 4095 fit" in violations(status_of(caught.value))["chat"]
    size = LONG * 4 // 3
    with pytest.raises(grpc.RpcError) as caught:
        await anext(aiter(stub.Generate(pb.GenerateRequest(text="x" * size))))
    assert violations(status_of(caught.value)) == {
        "text": f"the prompt is too long: {size} bytes of UTF-8, but at most 4096 fit: "
        "this model's maximum context length is 4096 tokens (max_model_len), and its longest token stands for 1 bytes"
    }


TEXT = "x" * 5000


@pytest.mark.parametrize(
    "message",
    [
        pb.ChatMessage(content=TEXT),
        pb.ChatMessage(reasoning=TEXT),
        pb.ChatMessage(tool_call_id=TEXT),
        pb.ChatMessage(tool_calls=[pb.ToolCall(id=TEXT)]),
        pb.ChatMessage(tool_calls=[pb.ToolCall(name=TEXT)]),
        pb.ChatMessage(tool_calls=[pb.ToolCall(arguments=TEXT)]),
    ],
    ids=["content", "reasoning", "tool_call_id", "id", "name", "arguments"],
)
async def test_all_texts_of_a_message_count(stub: AsyncStub, message: pb.ChatMessage) -> None:
    chat = pb.Chat(messages=[message])
    for call in (
        stub.Tokenize(pb.TokenizeRequest(chat=chat)),
        anext(aiter(stub.Generate(pb.GenerateRequest(chat=chat)))),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            await call
        assert "bytes of UTF-8, but at most 4096 fit" in violations(status_of(caught.value))["chat.messages"]


async def test_a_text_that_clients_could_not_receive_is_refused(
    stub: AsyncStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftline.engine.server.grpc.inference.MAX_DETOKENIZED", 3)
    assert (await stub.Detokenize(pb.DetokenizeRequest(token_ids=b"abc"))).text == "abc"
    with pytest.raises(grpc.RpcError) as caught:
        await stub.Detokenize(pb.DetokenizeRequest(token_ids=b"abcd"))
    assert "have a text of 4 bytes; at most 3 fit" in violations(status_of(caught.value))["token_ids"]


NO_TOOLS = pb.Chat(
    messages=[pb.ChatMessage(role="user", content="a")],
    tool_choice=pb.ToolChoice(mode=pb.ToolChoice.MODE_NONE, names=["f"]),
)


@pytest.mark.parametrize(
    ("request_", "field", "problem"),
    [
        (pb.GenerateRequest(text="a", timeout=Duration(seconds=5, nanos=-(2 * 10**9))), "timeout", "-2000000000 ns"),
        (pb.GenerateRequest(text="a", timeout=Duration(seconds=5, nanos=-1)), "timeout", "which is no duration"),
        (
            pb.GenerateRequest(
                token_ids=pb.TokenIds(ids=[1] * (MAX_CUT + 1)), sampling=pb.SamplingParams(truncate_prompt_tokens=1)
            ),
            "token_ids",
            f"has {MAX_CUT + 1} token ids; at most {MAX_CUT} fit",
        ),
        (pb.GenerateRequest(chat=NO_TOOLS), "chat.tool_choice.names", "none may be called"),
    ],
)
async def test_contradictions_and_prompts_that_are_too_long_to_be_cut_are_named(
    stub: AsyncStub, request_: pb.GenerateRequest, field: str, problem: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        await anext(aiter(stub.Generate(request_)))
    assert problem in violations(status_of(caught.value))[field]


async def test_detokenize_names_the_first_id_out_of_range(stub: AsyncStub) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        await stub.Detokenize(pb.DetokenizeRequest(token_ids=[1, 2, VOCAB, 2**32 - 1]))
    assert violations(status_of(caught.value)) == {
        "token_ids[2]": f"{VOCAB} is not a token id of this model (0 to {VOCAB - 1})"
    }


async def test_get_model(stub: AsyncStub) -> None:
    model = await stub.GetModel(pb.GetModelRequest())
    assert model == pb.GetModelResponse(
        model="fake",
        family="fake",
        quantization="none",
        dtype="float32",
        device="cpu",
        vocab_size=VOCAB,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=64,
        cache_blocks=1024,
        block_size=16,
        eos_token_ids=[0],
        has_chat_template=True,
        version=__version__,
        system_fingerprint="fp_fake",
    )


async def test_check_constraint_needs_one(stub: AsyncStub) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        await stub.CheckConstraint(pb.CheckConstraintRequest(constraint=pb.Constraint()))
    assert status_of(caught.value).code == INVALID_ARGUMENT.value[0]


async def test_check_constraint_compiles_and_reports(stub: AsyncStub) -> None:
    answer = await stub.CheckConstraint(pb.CheckConstraintRequest(constraint=pb.Constraint(regex="ab*")))
    assert (answer.backend, answer.states, list(answer.unenforced)) == ("automaton", 3, [])
    assert answer.compile_s > 0
    assert (answer.no_automaton, answer.token_classes, answer.token_masks) == ("", 4, 3)
    grammar = pb.Constraint(json_schema='{"type": "object", "properties": {"a": {"type": "object"}}}')
    answer = await stub.CheckConstraint(pb.CheckConstraintRequest(constraint=grammar))
    assert answer.backend == "grammar"
    assert answer.no_automaton.startswith("#")
    closed = pb.Constraint(json_schema='{"type": "object", "properties": {"a": {"type": "null"}}}', close_objects=True)
    answer = await stub.CheckConstraint(pb.CheckConstraintRequest(constraint=closed))
    assert (answer.backend, list(answer.closed)) == ("automaton", [""])
    loose = pb.Constraint(json_schema='{"type": "string", "pattern": "(x)\\\\1"}', best_effort=True)
    answer = await stub.CheckConstraint(pb.CheckConstraintRequest(constraint=loose))
    assert list(answer.unenforced) == ["/pattern"]


async def test_a_constraint_that_cannot_be_enforced_is_refused_with_its_pointers(stub: AsyncStub) -> None:
    schema = '{"type": "object", "properties": {"a": {"type": "string", "pattern": "(x)\\\\1"}}}'
    constraint = pb.Constraint(json_schema=schema)
    with pytest.raises(grpc.RpcError) as caught:
        await stub.CheckConstraint(pb.CheckConstraintRequest(constraint=constraint))
    assert list(violations(status_of(caught.value))) == ["constraint.json_schema#/properties/a/pattern"]
    fields = await refused(stub, pb.GenerateRequest(text="a", constraint=constraint))
    assert list(fields) == ["constraint.json_schema#/properties/a/pattern"]
    assert (await generate(stub, pb.GenerateRequest(text="a", constraint=pb.Constraint(regex="ab"))))[0].finished


METHODS = (
    "/draftline.v1.InferenceService/Generate",
    "/draftline.v1.InferenceService/GetModel",
    "/draftline.v1.AdminService/GetStatistics",
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("messages", "code", "details"),
    [
        ([], grpc.StatusCode.UNIMPLEMENTED, "the call has no request, and the method takes exactly one"),
        (
            [b"", b""],
            grpc.StatusCode.UNIMPLEMENTED,
            "the call has more than one request, and the method takes exactly one",
        ),
        ([b"\xff\xff\xff"], INVALID_ARGUMENT, "Error parsing message"),
        ([b"", b"\xff\xff\xff"], INVALID_ARGUMENT, "Error parsing message"),
    ],
    ids=["no request", "two", "a damaged one", "a damaged second one"],
)
async def test_a_call_without_one_whole_request_has_one_status(
    channel: grpc.aio.Channel,
    stub: AsyncStub,
    method: str,
    messages: list[bytes],
    code: grpc.StatusCode,
    details: str,
) -> None:
    call = channel.stream_stream(method)(iter(messages), timeout=DEADLINE_S)
    with pytest.raises(grpc.RpcError) as caught:
        [response async for response in call]
    assert status_of(caught.value).code == code.value[0]
    assert details in status_of(caught.value).message
