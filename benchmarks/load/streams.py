"""Many concurrent streams, over one Session or over many connections, compared with offline throughput."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc.aio

from draftline.engine.bench.batches import BenchmarkRequest, OfflineWorkload
from draftline.engine.bench.contenders.engines import BenchmarkModel, Draftline
from draftline.engine.client.channel import OWN_CONNECTION
from draftline.v1 import engine_pb2 as pb
from load.rounds import Sent, best_round

if TYPE_CHECKING:
    from draftline.v1.engine_pb2_grpc import InferenceServiceAsyncStub
else:
    from draftline.v1.engine_pb2_grpc import InferenceServiceStub as InferenceServiceAsyncStub


OPTIONS = [("grpc.max_receive_message_length", -1), OWN_CONNECTION]
"""Options of a connection that shares no TCP connection with others."""


async def one_session(address: str, requests: Sequence[pb.GenerateRequest]) -> Sent:
    """Send all requests over one Session."""
    async with grpc.aio.insecure_channel(address, OPTIONS) as channel:
        await channel.channel_ready()
        start = time.perf_counter()
        call = InferenceServiceAsyncStub(channel).Session()
        for name, wanted in enumerate(requests):
            await call.write(pb.SessionRequest(request_id=str(name), submit=wanted))
        await call.done_writing()
        tokens, messages = await _counts(response.delta async for response in call)
        return Sent(tokens, messages, time.perf_counter() - start)


async def many_connections(address: str, requests: Sequence[pb.GenerateRequest]) -> Sent:
    """Send each request over its own open connection."""
    channels = [grpc.aio.insecure_channel(address, OPTIONS) for _ in requests]
    try:
        await asyncio.gather(*(channel.channel_ready() for channel in channels))
        start = time.perf_counter()
        calls = [InferenceServiceAsyncStub(c).Generate(r) for c, r in zip(channels, requests, strict=True)]
        counts = await asyncio.gather(*(_counts(response.delta async for response in call) for call in calls))
        tokens, messages = map(sum, zip(*counts, strict=True))
        return Sent(tokens, messages, time.perf_counter() - start)
    finally:
        await asyncio.gather(*(channel.close() for channel in channels))


async def _counts(deltas: AsyncIterator[pb.Delta]) -> tuple[int, int]:
    """The tokens, and the messages with tokens."""
    counts = [len(delta.token_ids) async for delta in deltas if delta.token_ids]
    return sum(counts), len(counts)


def streams_workload(streams: int, prompt_len: int, output_len: int) -> OfflineWorkload:
    """The workload of --streams, on the server and offline."""
    return OfflineWorkload(f"streams{streams}", streams, (prompt_len, prompt_len), (output_len, output_len))


def measure_streams(
    address: str, workload: OfflineWorkload, vocab_size: int, best_of: int, server: int
) -> Iterator[dict[str, Any]]:
    """Measure one Session, then many connections; see `best_round`."""
    requests = [_request(each) for each in workload.draw(vocab_size)]
    for send in (one_session, many_connections):
        yield best_round(workload, send.__name__, partial(send, address, requests), best_of, server)


def _request(wanted: BenchmarkRequest) -> pb.GenerateRequest:
    """A greedy request for exactly ``output_len`` tokens."""
    sampling = pb.SamplingParams(max_tokens=wanted.output_len, ignore_eos=True, temperature=0.0, seed=0)
    return pb.GenerateRequest(token_ids=pb.TokenIds(ids=wanted.prompt), sampling=sampling)


def offline(model: BenchmarkModel, workload: OfflineWorkload, best_of: int, options: Mapping[str, object]) -> float:
    """The engine's tokens/s in this process, without a server."""
    engine = Draftline(model, "auto", "auto", workload.max_model_len, options)
    requests = workload.draw(engine.vocab_size)
    seconds = []
    for _ in range(best_of + 1):
        start = time.perf_counter()
        engine.run(requests, 0.0)
        seconds.append(time.perf_counter() - start)
    return sum(r.output_len for r in requests) / min(seconds[1:])
