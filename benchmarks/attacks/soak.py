"""The clients of a soak: each kind behaves badly in its own way, and checks what it gets."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from draftline.engine.client.channel import OWN_CONNECTION
from draftline.engine.core import Core
from draftline.v1 import engine_pb2 as pb

if TYPE_CHECKING:
    from draftline.v1.engine_pb2_grpc import InferenceServiceAsyncStub
else:
    from draftline.v1.engine_pb2_grpc import InferenceServiceStub as InferenceServiceAsyncStub

TOPICS = ("the sea", "an old map", "tea", "gravity", "Lisbon", "a locked door", "whales", "jazz")
SHARED = "You are a patient assistant. Answer briefly and plainly. "
BAD: tuple[dict[str, Any], ...] = (
    {"sampling": {"top_p": 3.0}, "text": "x"},
    {"sampling": {"n": 0}, "text": "x"},
    {"text": ""},
    {},
    {"token_ids": {"ids": [2**32 - 1]}},
    {"text": "x", "constraint": {}},
    {"chat": {"messages": [{"role": "x" * 500, "content": "y"}]}},
)


@dataclass
class Soak:
    """The events so far.

    Attributes:
        solo: the tokens of each request when run alone.
        ends: how often each kind of client ended in each way.
        wrong: failed checks.
        faults: injected faults.
    """

    solo: list[tuple[int, ...]] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    faults: int = 0


def requests(count: int) -> list[pb.GenerateRequest]:
    """Different requests: greedy and sampled, short and longer, with and without a shared prefix."""
    made = []
    for index in range(count):
        topic = TOPICS[index % len(TOPICS)]
        text = f"{SHARED if index % 3 else ''}Tell me about {topic}, part {index}."
        sampling = pb.SamplingParams(
            temperature=0.0 if index % 2 else 0.8,
            seed=index,
            max_tokens=2 + index % 7,
            ignore_eos=True,
            n=2 if index % 11 == 5 else 1,
        )
        made.append(pb.GenerateRequest(text=text, sampling=sampling))
    return made


async def tokens_of(call: AsyncIterable[pb.GenerateResponse]) -> tuple[int, ...]:
    """All tokens of a finished call, output by output."""
    outputs: dict[int, list[int]] = {}
    async for response in call:
        if response.HasField("delta"):
            outputs.setdefault(response.delta.index, []).extend(response.delta.token_ids)
    return tuple(token for index in sorted(outputs) for token in (*outputs[index], -1))


class Injected(Exception):
    """A fault of a step that a soak injects."""


def inject_faults(core: Core, soak: Soak, rng: random.Random, share: float) -> None:
    """Make a share of the steps fail from now on."""
    launch = core._runner.launch

    def faulty(*arguments, **options):  # type: ignore[no-untyped-def]
        if rng.random() < share:
            soak.faults += 1
            raise Injected("injected")
        return launch(*arguments, **options)

    def unexpected(record: logging.LogRecord) -> bool:
        return not record.exc_info or not isinstance(record.exc_info[1], Injected)

    logging.getLogger("draftline.engine.core").addFilter(unexpected)

    core._runner.launch = faulty  # type: ignore[method-assign]


class Clients:
    """Clients of many kinds. Each public method is one kind of client, and returns how it ended."""

    def __init__(self, address: str, wanted: Sequence[pb.GenerateRequest], soak: Soak, rng: random.Random) -> None:
        """``wanted`` are the requests that ``soak`` has solo runs of."""
        self._channels = [grpc.aio.insecure_channel(address, [OWN_CONNECTION]) for _ in range(8)]
        self._stubs = [InferenceServiceAsyncStub(channel) for channel in self._channels]
        self._address, self._wanted, self._soak, self._rng = address, wanted, soak, rng
        self.ways: Sequence[tuple[Callable[[], Awaitable[str]], int]] = (
            (self.reads_all, 8),
            (self.stalls, 2),
            (self.shares_a_session, 5),
            (self.cancels_in_a_session, 3),
            (self.cancels_the_call, 3),
            (self.disconnects, 1),
            (self.has_a_deadline, 3),
            (self.sends_nonsense, 2),
        )

    async def close(self) -> None:
        """Disconnect."""
        for channel in self._channels:
            await channel.close()

    async def one(self) -> None:
        """Run one client of a random kind."""
        ways, weights = zip(*self.ways, strict=True)
        [way] = self._rng.choices(ways, weights)
        try:
            async with asyncio.timeout(300):
                end = await way()
        except grpc.aio.AioRpcError as error:
            end = error.code().name
            allowed = {"INTERNAL", "RESOURCE_EXHAUSTED"} | (
                {"DEADLINE_EXCEEDED"} if way == self.has_a_deadline else set()
            )
            if end not in allowed:
                self._soak.wrong.append(f"{way.__name__}: {end}: {error.details()}")
        except TimeoutError:
            end = "never ended"
            self._soak.wrong.append(f"{way.__name__}: it never ended")
        self._soak.ends[f"{way.__name__}: {end}"] += 1

    def _pick(self) -> tuple[int, pb.GenerateRequest, InferenceServiceAsyncStub]:
        index = self._rng.randrange(len(self._wanted))
        return index, self._wanted[index], self._rng.choice(self._stubs)

    def _compare(self, index: int, tokens: tuple[int, ...]) -> str:
        if tokens != self._soak.solo[index]:
            self._soak.wrong.append(f"request {index}: {tokens} is not its solo run {self._soak.solo[index]}")
        return "finished"

    async def reads_all(self) -> str:
        """Reads one request to the end."""
        index, request, stub = self._pick()
        return self._compare(index, await tokens_of(stub.Generate(request)))

    async def stalls(self) -> str:
        """Reads nothing for a while, then everything."""
        index, request, stub = self._pick()
        call = stub.Generate(request)
        await asyncio.sleep(self._rng.random())
        return self._compare(index, await tokens_of(call))

    async def shares_a_session(self) -> str:
        """Runs several requests over one Session."""
        picked = [self._pick() for _ in range(3)]
        call = picked[0][2].Session()
        for name, (_, request, _) in enumerate(picked):
            await call.write(pb.SessionRequest(request_id=str(name), submit=request))
        await call.done_writing()
        got: list[dict[int, list[int]]] = [{} for _ in picked]
        failed: set[int] = set()
        while isinstance(response := await call.read(), pb.SessionResponse):
            name = int(response.request_id)
            if response.HasField("delta"):
                got[name].setdefault(response.delta.index, []).extend(response.delta.token_ids)
            elif response.HasField("error"):
                failed.add(name)
        for name, (index, _, _) in enumerate(picked):
            if name not in failed:
                outputs = got[name]
                self._compare(index, tuple(token for index in sorted(outputs) for token in (*outputs[index], -1)))
        return "some failed" if failed else "finished"

    async def cancels_in_a_session(self) -> str:
        """Submits, waits a moment, cancels, and reads to the end."""
        _, request, stub = self._pick()
        call = stub.Session()
        await call.write(pb.SessionRequest(request_id="x", submit=request))
        await asyncio.sleep(self._rng.random() * 0.3)
        await call.write(pb.SessionRequest(request_id="x", cancel=pb.CancelRequest()))
        await call.done_writing()
        ends = 0
        while isinstance(response := await call.read(), pb.SessionResponse):
            ends += response.HasField("finished")
            if response.HasField("error"):
                return "failed"
        if ends != request.sampling.n:
            self._soak.wrong.append(f"a cancelled request has {ends} ends instead of {request.sampling.n}")
        return "ended"

    async def cancels_the_call(self) -> str:
        """Cancels the call in the middle."""
        _, request, stub = self._pick()
        call = stub.Generate(request)
        await asyncio.sleep(self._rng.random() * 0.3)
        call.cancel()
        return "cancelled"

    async def disconnects(self) -> str:
        """Closes its connection, with a Session and a call in flight."""
        _, request, _ = self._pick()
        channel = grpc.aio.insecure_channel(self._address, [OWN_CONNECTION])
        stub = InferenceServiceAsyncStub(channel)
        session, call = stub.Session(), stub.Generate(request)
        await session.write(pb.SessionRequest(request_id="x", submit=request))
        await asyncio.sleep(self._rng.random() * 0.3)
        await channel.close()
        del session, call
        return "gone"

    async def has_a_deadline(self) -> str:
        """Sets a deadline that may be too short."""
        index, request, stub = self._pick()
        hurried = pb.GenerateRequest()
        hurried.CopyFrom(request)
        hurried.timeout.FromNanoseconds(int(self._rng.random() * 0.5e9) + 1)
        return self._compare(index, await tokens_of(stub.Generate(hurried)))

    async def sends_nonsense(self) -> str:
        """Sends an invalid request, which must be rejected."""
        _, _, stub = self._pick()
        bad = self._rng.choice(BAD)
        try:
            await tokens_of(stub.Generate(pb.GenerateRequest(**bad)))
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                return "refused"
            raise
        self._soak.wrong.append(f"{bad} was served")
        return "served"
