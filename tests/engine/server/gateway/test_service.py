"""The gateway's protocol over a real socket: zeros that mean one, counts of chunks, Abort, and cache events."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import threading
import zipfile
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import grpc.aio
import pytest
from fake_engine import FakeEngine
from grpc_client import connect, status_of, violations
from patience import until

from draftline.engine import cache_journal
from draftline.engine.cache_journal import BlockRemoved, BlockStored, CacheJournal, Change, JournalReader
from draftline.engine.errors import InvalidRequestError
from draftline.engine.scheduling.prefix_tree import ROOT, PrefixTree
from draftline.engine.server.config import ServerConfig
from draftline.engine.server.server import Server

pytest.importorskip("smg_grpc_proto", reason="needs the gateway's messages: pip install 'draftline[gateway]'")

from smg_grpc_proto.generated import common_pb2 as common
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm
from smg_grpc_proto.generated.vllm_engine_pb2_grpc import VllmEngineStub

from draftline.engine.server.gateway.convert import as_request
from draftline.engine.server.gateway.events import CacheEvents
from draftline.engine.server.gateway.service import GATEWAY_SERVICE


@pytest.fixture
async def worker(engine: FakeEngine) -> AsyncIterator[tuple[Server, Any]]:
    """A server that listens for a gateway and has no engine yet, and a stub."""
    server = Server(ServerConfig(port=0, gateway=True))
    await server.start()
    async with connect(server.address) as channel:
        yield server, VllmEngineStub(channel)
    await server.abort()


@pytest.fixture
async def gateway(worker: tuple[Server, Any], engine: FakeEngine) -> Any:
    server, stub = worker
    await server.serve(engine)
    return stub


def request(text: str, *, stream: bool, request_id: str = "g", **sampling: Any) -> vllm.GenerateRequest:
    params = vllm.SamplingParams(**sampling)
    tokenized = vllm.TokenizedInput(original_text=text, input_ids=list(text.encode()))
    return vllm.GenerateRequest(request_id=request_id, tokenized=tokenized, sampling_params=params, stream=stream)


def test_the_traces_of_a_gateway_have_the_name_of_its_service() -> None:
    tracing = pytest.importorskip("draftline.engine.server.telemetry.tracing", reason="needs the extra tracing")
    assert tracing.span_name("VllmEngine.Generate") == f"{GATEWAY_SERVICE}/Generate"


async def test_zeros_mean_one_and_chunks_count_themselves(gateway: Any) -> None:
    answers = [a async for a in gateway.Generate(request("abc", stream=True, max_tokens=5, logprobs=2))]
    chunks, [end] = (
        [a.chunk for a in answers if a.HasField("chunk")],
        [a.complete for a in answers if a.HasField("complete")],
    )
    assert bytes(token for chunk in chunks for token in chunk.token_ids) == b"abcab"
    assert [chunk.completion_tokens for chunk in chunks] == [len(chunk.token_ids) for chunk in chunks]
    assert {chunk.prompt_tokens for chunk in chunks} == {3}
    assert (end.finish_reason, end.completion_tokens, end.prompt_tokens, list(end.output_ids)) == ("length", 5, 3, [])
    assert [len(top.token_ids) for chunk in chunks for top in chunk.output_logprobs.top_logprobs] == [2] * 5


async def test_a_request_that_is_not_streamed_gets_each_output_whole(gateway: Any) -> None:
    wanted = request("abc", stream=False, max_tokens=4, n=2, prompt_logprobs=1, logprobs=0)
    ends = [a.complete async for a in gateway.Generate(wanted)]
    assert sorted(end.index for end in ends) == [0, 1]
    assert [bytes(end.output_ids) for end in ends] == [b"abca", b"abca"]
    first = next(end for end in ends if end.index == 0)
    assert list(first.output_logprobs.token_ids) == list(b"abca")
    assert list(first.input_logprobs.token_ids) == list(b"abc")
    assert [value.HasField("value") for value in first.input_logprobs.token_logprobs] == [False, True, True]


async def test_abort_ends_a_stream_and_unknown_ids_are_no_error(gateway: Any, engine: FakeEngine) -> None:
    engine.hold()
    call = gateway.Generate(request("abc", stream=True, request_id="mine"))
    await call.initial_metadata()  # it was submitted
    await gateway.Abort(vllm.AbortRequest(request_ids=["mine", "unknown"]))
    engine.release()
    *_, last = [answer async for answer in call]
    assert last.complete.finish_reason == "abort"
    await gateway.Abort(vllm.AbortRequest(request_ids=["mine"]))
    assert len(engine.cancelled) == 1


async def test_cancelling_the_call_ends_the_request(gateway: Any, engine: FakeEngine) -> None:
    engine.hold()
    call = gateway.Generate(request("abc", stream=False))
    await call.initial_metadata()
    call.cancel()
    await until(lambda: len(engine.cancelled) == 1)  # before the engine runs: it would end the request by itself
    engine.release()
    engine.wait_idle()


async def test_unsupported_fields_are_refused_by_name(gateway: Any) -> None:
    wanted = request("abc", stream=False, logprobs=-1, truncate_prompt_tokens=4)
    wanted.sampling_params.include_stop_str_in_output = True
    wanted.kv_transfer_params_json = "{}"
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        [answer async for answer in gateway.Generate(wanted)]
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert set(violations(status_of(refused.value))) == {
        "kv_transfer_params_json",
        "sampling_params.truncate_prompt_tokens",
        "sampling_params.include_stop_str_in_output",
        "sampling_params.logprobs",
    }
    with pytest.raises(grpc.aio.AioRpcError) as missing:
        [answer async for answer in gateway.Generate(vllm.GenerateRequest())]
    assert set(violations(status_of(missing.value))) == {"prompt"}


@pytest.mark.parametrize(
    ("constraint", "field"),
    [
        ({"json_schema": '{"type": "strin"}'}, "constraint.json_schema#/type"),
        ({"structural_tag": "{}"}, "constraint.structural_tag"),
    ],
)
async def test_a_constraint_that_does_not_compile_is_refused(
    gateway: Any, constraint: dict[str, str], field: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        [answer async for answer in gateway.Generate(request("abc", stream=False, **constraint))]
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert set(violations(status_of(refused.value))) == {field}


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("json_schema", '{"type": "object"}', ("json_schema", '{"type": "object"}')),
        ("regex", "a+", ("regex", "a+")),
        ("grammar", "start: A", ("grammar", "start: A")),
        ("choice", vllm.ChoiceConstraint(choices=["a", "b"]), ("choice", ["a", "b"])),
        ("json_object", True, ("json_object", True)),
        ("json_object", False, (None, None)),
    ],
)
def test_constraints_map_through(field: str, value: Any, expected: tuple[str | None, Any]) -> None:
    constraint = as_request(request("x", stream=False, **{field: value})).constraint
    kind, content = expected
    assert constraint.WhichOneof("kind") == kind
    if kind == "choice":
        assert list(constraint.choice.choices) == content
    elif kind not in (None, "json_object"):
        assert getattr(constraint, str(kind)) == content


def test_sampling_maps_through() -> None:
    ours = as_request(
        request("x", stream=False, seed=-1, top_p=0.5, n=3, temperature=0.0, logit_bias={3: 2.0})
    ).sampling
    assert (ours.seed, ours.top_p, ours.n, ours.HasField("temperature")) == (2**64 - 1, 0.5, 3, True)
    assert dict(ours.logit_bias) == {3: 2.0}
    unset = as_request(request("x", stream=False)).sampling
    assert (unset.top_p, unset.repetition_penalty, unset.n) == (1.0, 1.0, 1)
    assert not any(unset.HasField(name) for name in ("temperature", "max_tokens", "seed", "logprobs"))
    with pytest.raises(InvalidRequestError):
        as_request(request("x", stream=False, logit_bias={-1: 2.0}))


async def test_health_follows_the_server(worker: tuple[Server, Any], engine: FakeEngine) -> None:
    server, stub = worker

    async def healthy() -> bool:
        return bool((await stub.HealthCheck(vllm.HealthCheckRequest())).healthy)

    assert not await healthy()
    await server.serve(engine)
    assert await healthy()
    engine.close()
    assert not await healthy()


async def test_the_descriptions_of_model_server_and_load(gateway: Any, engine: FakeEngine) -> None:
    model = await gateway.GetModelInfo(vllm.GetModelInfoRequest())
    assert (model.model_path, model.vocab_size, model.max_context_length) == ("fake", 256, 4096)
    assert list(model.eos_token_ids) == [0]
    server = await gateway.GetServerInfo(vllm.GetServerInfoRequest())
    assert (server.server_type, server.block_size, server.max_num_seqs) == ("vllm-grpc", 16, 64)
    engine.hold()
    call = gateway.Generate(request("abc", stream=True))
    await call.initial_metadata()
    [load] = (await gateway.GetLoads(vllm.GetLoadsRequest())).loads
    assert (load.num_running_reqs, load.max_running_requests) == (1, 64)
    call.cancel()
    engine.release()


async def test_the_tokenizer_comes_as_a_zip_with_its_digest(gateway: Any, engine: FakeEngine) -> None:
    files = {"tokenizer.json": json.dumps({"x": "y" * 10}), "tokenizer_config.json": "{}"}
    engine.tokenizer.files = lambda: files  # type: ignore[method-assign]
    chunks = [chunk async for chunk in gateway.GetTokenizer(common.GetTokenizerRequest())]
    data = b"".join(chunk.data for chunk in chunks)
    assert [chunk.sha256 for chunk in chunks][-1] == hashlib.sha256(data).hexdigest()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert {name: archive.read(name).decode() for name in archive.namelist()} == files


async def test_cache_events_begin_with_a_snapshot(gateway: Any, engine: FakeEngine) -> None:
    tree = PrefixTree(4, engine.journal)
    tree.insert(ROOT, (1, 2, 3, 4), 7)
    tree.insert(7, (5, 6, 7, 8), 9)
    call = gateway.SubscribeKvEvents(common.SubscribeKvEventsRequest(start_sequence_number=40))
    snapshot = await call.read()
    assert (snapshot.sequence_number, snapshot.snapshot.count, snapshot.snapshot.blocks) == (40, 1, 2)
    cleared, first, second = snapshot.events
    assert cleared.HasField("cleared")
    assert list(first.stored.blocks[0].token_ids) == [1, 2, 3, 4]
    assert not first.stored.HasField("parent_block_hash")
    assert second.stored.parent_block_hash == first.stored.blocks[0].block_hash
    tree.idle(9)
    tree.evict()
    while not (batch := await call.read()).events:
        assert batch.load.load_only
        assert batch.sequence_number == 40
    [removed] = batch.events
    assert batch.sequence_number == 41
    assert list(removed.removed.block_hashes) == [second.stored.blocks[0].block_hash]
    assert not batch.load.load_only
    call.cancel()


async def test_the_cache_s_blocks_are_not_hashed_on_the_event_loop(
    gateway: Any, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    take = JournalReader.take

    def taken(reader: JournalReader) -> tuple[bool, Sequence[Change]]:
        threads.append(threading.current_thread())
        return take(reader)

    monkeypatch.setattr(JournalReader, "take", taken)
    call = gateway.SubscribeKvEvents(common.SubscribeKvEventsRequest())
    await call.read()
    assert threads
    assert threading.current_thread() not in threads
    call.cancel()


def test_block_hashes_follow_from_tokens_and_slow_readers_start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_journal, "MAX_UNREAD", 3)
    journals = [CacheJournal(), CacheJournal()]
    for journal, blocks in zip(journals, ((3, 8), (8, 3)), strict=True):
        journal.stored(blocks[0], (ROOT, (1, 2)))
        journal.stored(blocks[1], (blocks[0], (1, 2)))
    woken: list[None] = []
    reader, other = [journal.follow(lambda: woken.append(None)) for journal in journals]
    everything, known = reader.take()
    assert everything
    assert other.take() == (True, known)
    assert len({stored.block_hash for stored in known}) == 2
    journals[0].removed(8)
    assert (woken, reader.take()) == ([None], (False, [BlockRemoved(known[1].block_hash)]))
    for block in range(20, 24):
        journals[0].stored(block, (ROOT, (block,)))
    everything, now = reader.take()
    assert everything
    assert [stored.tokens for stored in now if isinstance(stored, BlockStored)] == [(1, 2), (20,), (21,), (22,), (23,)]


def test_the_cache_changes_after_the_loop_of_a_gateway_has_closed(engine: FakeEngine) -> None:
    """An error would end the step thread."""

    async def follow() -> CacheEvents:
        events = CacheEvents(engine, 0)
        await events.next()
        return events

    events = asyncio.run(follow())
    engine.journal.stored(3, (ROOT, (1, 2)))
    events.close()


def test_a_copied_journal_has_the_same_blocks_as_the_other_one() -> None:
    source, copy = CacheJournal(), CacheJournal()
    events, reader = source.follow(lambda: None), copy.follow(lambda: None)
    for block, parent in ((3, ROOT), (8, 3), (5, 8)):
        source.stored(block, (parent, (block, 1)))
    copy.copy(*events.take_events())
    everything, first = reader.take()
    assert (everything, len(first)) == (True, 3)
    source.removed(5)
    source.stored(5, (3, (7, 7)))
    copy.copy(*events.take_events())
    assert copy.keys == source.keys
    everything, changes = reader.take()
    assert (everything, changes[0]) == (False, BlockRemoved(first[2].block_hash))
    assert isinstance(changes[1], BlockStored)
    assert changes[1].parent_hash == first[0].block_hash
    copy.copy(True, source.known()[:1])
    assert reader.take() == (True, list(first[:1]))


def test_a_closed_reader_takes_nothing_more() -> None:
    journal = CacheJournal()
    reader = journal.follow(lambda: None)
    reader.take()
    reader.close()
    journal.stored(30, (ROOT, (30,)))
    assert reader.take() == (False, [])
