"""The clients of an attack, each kind in a process of its own: ``python clients.py KIND HOST:PORT SECONDS``.

``victim`` reads one stream after the other, and prints the gaps between its tokens. ``single`` sends one request after the
other, and prints the times to their first tokens. The others are attackers. They run at the lowest priority, so that their
own work takes little of the machine.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from draftline.v1 import engine_pb2 as pb

if TYPE_CHECKING:
    from draftline.v1.engine_pb2_grpc import InferenceServiceAsyncStub
else:
    from draftline.v1.engine_pb2_grpc import InferenceServiceStub as InferenceServiceAsyncStub

Attack = Callable[[InferenceServiceAsyncStub, int], Awaitable[object]]
"""One call of an attacker; the number makes it different from all others."""


async def _check(stub: InferenceServiceAsyncStub, constraint: pb.Constraint, timeout: float) -> None:
    await stub.CheckConstraint(pb.CheckConstraintRequest(constraint=constraint), timeout=timeout)


async def explosions(stub: InferenceServiceAsyncStub, number: int) -> None:
    """Expressions with enormous automata, by callers that do not wait for them."""
    await _check(stub, pb.Constraint(regex=f"[01]*1[01]{{40}}{number}"), 0.5)


async def choices(stub: InferenceServiceAsyncStub, number: int) -> None:
    """Four thousand choices."""
    texts = [f"item {index * 7919} of list {number}" for index in range(4000)]
    await _check(stub, pb.Constraint(choice=pb.Choice(choices=texts)), 30)


async def schemas(stub: InferenceServiceAsyncStub, number: int) -> None:
    """Unions of objects, intersected."""
    branches = [
        {"properties": {f"p{i}": {"type": "string", "maxLength": 20 + i + number}}, "required": [f"p{i}"]}
        for i in range(16)
    ]
    schema = {"allOf": [{"anyOf": branches}, {"anyOf": branches[::-1]}]}
    await _check(stub, pb.Constraint(json_schema=json.dumps(schema)), 30)


async def grammars(stub: InferenceServiceAsyncStub, number: int) -> None:
    """Two thousand rules."""
    rules = "\n".join(f'r{i}: "k{i}" | "v{number}" r{(i * 7 + 1) % 2000}' for i in range(2000))
    await _check(stub, pb.Constraint(grammar=f"start: r0 | r5\n{rules}"), 30)


async def texts(stub: InferenceServiceAsyncStub, number: int) -> None:
    """Half a megabyte to tokenize."""
    await stub.Tokenize(pb.TokenizeRequest(text=f"hello world {number} and then foo " * 15_000))


async def prompts(stub: InferenceServiceAsyncStub, number: int) -> None:
    """Prompts of 1,900 tokens."""
    ids = [100 + (number + index) % 1000 for index in range(1900)]
    await _generate(stub, pb.GenerateRequest(token_ids=pb.TokenIds(ids=ids), sampling=pb.SamplingParams(max_tokens=1)))


async def forced(stub: InferenceServiceAsyncStub, number: int) -> None:
    """Grammars that force long texts."""
    constraint = pb.Constraint(regex=f"x[0-9]b{{51000}}{number}")
    sampling = pb.SamplingParams(max_tokens=8)
    await _generate(stub, pb.GenerateRequest(text="a", constraint=constraint, sampling=sampling))


async def _generate(stub: InferenceServiceAsyncStub, request: pb.GenerateRequest) -> None:
    async for _ in stub.Generate(request):
        pass


ATTACKS: dict[str, tuple[Attack, int]] = {
    "explosions": (explosions, 8),
    "choices": (choices, 2),
    "schemas": (schemas, 2),
    "grammars": (grammars, 2),
    "texts": (texts, 4),
    "forced": (forced, 2),
    "prompts": (prompts, 2),
}
"""Each attack, and how many clients of it there are at once."""


async def attack(kind: str, address: str, seconds: float) -> None:
    """Run an attack's clients until the time is over."""
    call, count = ATTACKS[kind]
    numbers = itertools.count()
    over = time.monotonic() + seconds

    async def client(stub: InferenceServiceAsyncStub) -> None:
        while time.monotonic() < over:
            try:
                await call(stub, next(numbers))
            except grpc.aio.AioRpcError:  # refused, or past its deadline
                await asyncio.sleep(0.01)

    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(address, options) as channel, asyncio.timeout(seconds):
        await asyncio.gather(*(client(InferenceServiceAsyncStub(channel)) for _ in range(count)))


async def victim(address: str, seconds: float) -> list[float]:
    """Read streams; returns the seconds between two messages of one."""
    gaps: list[float] = []
    over = time.monotonic() + seconds
    request = pb.GenerateRequest(
        text="Tell me about the sea.", sampling=pb.SamplingParams(max_tokens=200, temperature=0, ignore_eos=True)
    )
    async with grpc.aio.insecure_channel(address) as channel:
        stub = InferenceServiceAsyncStub(channel)
        while time.monotonic() < over:
            last: float | None = None
            async for _ in stub.Generate(request):
                now = time.monotonic()
                if last is not None:
                    gaps.append(now - last)
                last = now
    return gaps


async def crowd(address: str, seconds: float) -> None:
    """Two hundred requests at once. Prints a line when the first of them has ended: the others run or wait then."""
    said = False

    async def one(stub: InferenceServiceAsyncStub, number: int) -> None:
        nonlocal said
        sampling = pb.SamplingParams(max_tokens=20, ignore_eos=True, seed=number)
        request = pb.GenerateRequest(text=f"Tell me about the number {number}.", sampling=sampling)
        async for _ in stub.Generate(request, metadata=_bearer("crowd")):
            pass
        if not said:
            said = True
            print("the first has ended", flush=True)

    async with grpc.aio.insecure_channel(address) as channel, asyncio.timeout(seconds):
        stub = InferenceServiceAsyncStub(channel)
        await asyncio.gather(*(one(stub, number) for number in range(200)))


async def single(address: str, seconds: float) -> list[float]:
    """Send one request after the other, at least one; returns the seconds to the first tokens."""
    waits: list[float] = []
    over = time.monotonic() + seconds
    async with grpc.aio.insecure_channel(address) as channel:
        stub = InferenceServiceAsyncStub(channel)
        while not waits or (time.monotonic() < over and len(waits) < 8):
            sampling = pb.SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
            started, first = time.monotonic(), None
            request = pb.GenerateRequest(text=f"What is the {len(waits)}. planet?", sampling=sampling)
            async for _ in stub.Generate(request, metadata=_bearer("single")):
                first = first or time.monotonic()
            assert first is not None
            waits.append(first - started)
    return waits


def _bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


def main(arguments: Iterator[str]) -> None:
    """Run the command."""
    kind, address, seconds = next(arguments), next(arguments), float(next(arguments))
    if kind == "victim":
        print(json.dumps(asyncio.run(victim(address, seconds))))
        return
    if kind == "single":
        print(json.dumps(asyncio.run(single(address, seconds))))
        return
    os.nice(19)
    try:
        asyncio.run(crowd(address, seconds) if kind == "crowd" else attack(kind, address, seconds))
    except TimeoutError:
        return


if __name__ == "__main__":
    main(iter(sys.argv[1:]))
