"""The clients of serving.py: requests, turns of conversations, and their latencies."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc.aio

from draftline.v1 import engine_pb2 as pb
from load.workloads import Conversation, ServingWorkload

if TYPE_CHECKING:
    from draftline.v1.engine_pb2_grpc import InferenceServiceAsyncStub
else:
    from draftline.v1.engine_pb2_grpc import InferenceServiceStub as InferenceServiceAsyncStub

OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
"""Options of a connection that shares no TCP connection with others."""


@dataclass(slots=True)
class Turn:
    """The latencies of one request in seconds, and its tokens."""

    first_s: float = 0.0
    total_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    prompt_tokens: int = 0


def request(prompt: Sequence[int], output_len: int, seed: int) -> pb.GenerateRequest:
    """A greedy request for exactly ``output_len`` tokens."""
    sampling = pb.SamplingParams(max_tokens=output_len, ignore_eos=True, temperature=0.0, seed=seed)
    return pb.GenerateRequest(token_ids=pb.TokenIds(ids=prompt), sampling=sampling)


async def ask(stub: InferenceServiceAsyncStub, prompt: Sequence[int], output_len: int) -> Turn:
    """Run one request. A delta of n tokens counts as n gaps of equal length.

    Raises:
        RuntimeError: it got a different number of tokens.
    """
    turn = Turn(prompt_tokens=len(prompt))
    start = last = time.perf_counter()
    async for response in stub.Generate(request(prompt, output_len, 0)):
        if not response.HasField("delta"):
            continue
        now, count = time.perf_counter(), len(response.delta.token_ids)
        if not turn.tokens:
            turn.first_s = now - start
            turn.gaps_s += [0.0] * (count - 1)
        else:
            turn.gaps_s += [(now - last) / count] * count
        turn.tokens += response.delta.token_ids
        last = now
    turn.total_s = time.perf_counter() - start
    if len(turn.tokens) != output_len:
        raise RuntimeError(f"a request got {len(turn.tokens)} tokens instead of {output_len}")
    return turn


async def converse(stub: InferenceServiceAsyncStub, conversation: Conversation) -> list[Turn]:
    """Run all turns of a conversation, one after the other."""
    history: list[int] = []
    turns: list[Turn] = []
    for new, output_len in conversation.turns:
        if turns:
            await asyncio.sleep(conversation.think_s)
        history += new
        turns.append(await ask(stub, history, output_len))
        history += turns[-1].tokens
    return turns


async def run(address: str, workload: ServingWorkload, vocab_size: int) -> tuple[list[Turn], float]:
    """Run a workload; return all turns, and the seconds that it took."""
    conversations = workload.draw(vocab_size)
    limit = asyncio.Semaphore(workload.concurrency or len(conversations))
    async with grpc.aio.insecure_channel(address, OPTIONS) as channel:
        stub = InferenceServiceAsyncStub(channel)
        await ask(stub, conversations[0].turns[0][0], 4)  # warm
        start = time.perf_counter()

        async def one(conversation: Conversation) -> list[Turn]:
            await asyncio.sleep(conversation.arrives_s)
            async with limit:
                return await converse(stub, conversation)

        turns = await asyncio.gather(*map(one, conversations))
        return list(itertools.chain(*turns)), time.perf_counter() - start
