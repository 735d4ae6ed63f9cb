"""A soak test: a real server with clients that cancel, disconnect, stall and send nonsense, while steps fail.

    python benchmarks/chaos.py --requests 2000
    python benchmarks/chaos.py --requests 0 --attack all --attack-rounds 3 --crowd

Clients send a few dozen different requests, each of which was first run alone. A request that finishes must have the
same tokens as alone. At the end all blocks must be free, no task or thread may be left, and memory may not have grown
since half of the requests.

``--attack`` then attacks a server of its own, and reports the gaps in another client's stream: the median may double (under
long prompts it may be as long as ``--inter-token-target``), and no gap may be longer than 150 ms. ``--crowd`` reports the
time to the first token behind another caller's 200 requests, which may be 1.5 s.

The result is a JSON line, and a table on standard error; the exit status is 1 if a check fails.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import torch
from attacks.run import chosen, report, run_attacks, run_crowd
from common.provenance import Conditions

from draftline.engine.build import build_core
from draftline.engine.config import EngineConfig
from draftline.engine.core import Core
from draftline.engine.server.config import ServerConfig
from draftline.engine.server.server import Server
from draftline.engine.threaded_engine import ThreadedEngine
from draftline.v1 import engine_pb2 as pb

if TYPE_CHECKING:
    from draftline.v1.engine_pb2_grpc import InferenceServiceAsyncStub
else:
    from draftline.v1.engine_pb2_grpc import InferenceServiceStub as InferenceServiceAsyncStub

TOPICS = ("the sea", "an old map", "tea", "gravity", "Lisbon", "a locked door", "whales", "jazz")
SHARED = "You are a patient assistant. Answer briefly and plainly. "
GROWTH_MIB = 64.0
"""The growth of memory in the second half that counts as none: slack of the allocator."""

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


def inject_faults(core: Core, soak: Soak, rng: random.Random, share: float) -> None:
    """Make a share of the steps fail from now on."""
    launch = core._runner.launch

    def faulty(*arguments, **options):  # type: ignore[no-untyped-def]
        if rng.random() < share:
            soak.faults += 1
            raise RuntimeError("injected")
        return launch(*arguments, **options)

    core._runner.launch = faulty  # type: ignore[method-assign]


class Clients:
    """Clients of many kinds. Each public method is one kind of client, and returns how it ended."""

    def __init__(self, address: str, wanted: Sequence[pb.GenerateRequest], soak: Soak, rng: random.Random) -> None:
        """``wanted`` are the requests that ``soak`` has solo runs of."""
        self._channels = [grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) for _ in range(8)]
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
        channel = grpc.aio.insecure_channel(self._address, [("grpc.use_local_subchannel_pool", 1)])
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


async def soak_server(core: Core, engine: ThreadedEngine, arguments: argparse.Namespace) -> tuple[Soak, list[float]]:
    """Serve each request alone, then all clients; return the events, and the memory in MiB half way and at the end."""
    soak, rng = Soak(), random.Random(arguments.seed)
    server = Server(ServerConfig(port=0, log_requests=False))
    await server.start()
    await server.serve(engine)
    wanted = requests(arguments.kinds)
    before = asyncio.all_tasks()
    clients = Clients(server.address, wanted, soak, rng)
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = InferenceServiceAsyncStub(channel)
        soak.solo = [await tokens_of(stub.Generate(request)) for request in wanted]
    inject_faults(core, soak, rng, arguments.faults)
    memory: list[float] = []
    running: set[asyncio.Task[None]] = set()
    for number in range(arguments.requests):
        if number == arguments.requests // 2:
            memory.append(resident_mib())
        while len(running) >= arguments.concurrency:
            _, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        running.add(asyncio.create_task(clients.one()))
    await asyncio.gather(*running)
    await clients.close()
    await settled(engine, soak)
    memory = [*memory, resident_mib()] if memory else [resident_mib()] * 2
    for _ in range(200):
        left = {task for task in asyncio.all_tasks() - before if not task.done() and not _waits_for_calls(task)}
        if not left:
            break
        await asyncio.sleep(0.05)
    soak.wrong += [f"a task is left: {task!r}" for task in left]
    if not await server.drain():
        soak.wrong.append("the server did not drain")
    return soak, memory


def _waits_for_calls(task: asyncio.Task[object]) -> bool:
    """Whether a task is gRPC's own: a listening server has one for each method."""
    return "_request_registered_call" in repr(task)


async def settled(engine: ThreadedEngine, soak: Soak) -> None:
    """Wait until the engine is idle, then check that all blocks are free."""
    for _ in range(600):
        stats = engine.stats()
        if not stats.running and not stats.waiting and stats.free_blocks + stats.cached_blocks == stats.total_blocks:
            break
        await asyncio.sleep(0.05)
    else:
        soak.wrong.append(f"the engine is not idle: {stats}")
    await asyncio.wrap_future(engine.flush_prefix_cache())
    stats = engine.stats()
    if stats.free_blocks != stats.total_blocks:
        soak.wrong.append(f"only {stats.free_blocks} of {stats.total_blocks} blocks are free")


def resident_mib() -> float:
    """The resident memory of the process in MiB."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="an HF folder, a .gguf file or a hub id (default: smollm2)")
    parser.add_argument("--requests", type=int, default=2000, help="clients in all (default: 2000)")
    parser.add_argument("--kinds", type=int, default=32, help="different requests (default: 32)")
    parser.add_argument("--concurrency", type=int, default=40, help="clients at a time (default: 40)")
    parser.add_argument("--faults", type=float, default=0.02, help="the share of steps that fail (default: 0.02)")
    parser.add_argument("--seed", type=int, default=0, help="the seed of clients and faults (default: 0)")
    parser.add_argument("--device", default="auto", help="cpu, cuda, … (default: a GPU if there is one)")
    parser.add_argument("--attack", default="", metavar="NAMES", help="attacks with commas between them, or all")
    parser.add_argument("--attack-rounds", type=int, default=1, help="how often each attack is run (default: 1)")
    parser.add_argument("--crowd", action="store_true", help="measure the wait behind another caller's 200 requests")
    parser.add_argument("--attack-seconds", type=float, default=20.0, help="the length of each attack (default: 20)")
    arguments = parser.parse_args(argv)
    attacks = chosen(arguments.attack)
    started = time.monotonic()
    result, wrong = run_soak(arguments) if arguments.requests else ({}, [])
    rounds = (
        run_attacks(attacks, arguments.attack_rounds, arguments.model, arguments.device, arguments.attack_seconds)
        if attacks
        else []
    )
    waits = run_crowd(arguments.model, arguments.device) if arguments.crowd else None
    figures, harm = report(rounds, waits)
    wrong += harm
    gpu = "cuda" if torch.cuda.is_available() else "cpu"
    conditions = Conditions.now(torch.device(gpu if arguments.device == "auto" else arguments.device))
    head = {
        "date": conditions.date,
        "machine": conditions.machine,
        "load": conditions.load,
        "commit": conditions.commit,
        "model": arguments.model,
        "seconds": round(time.monotonic() - started, 1),
    }
    print(json.dumps({**head, **result, **figures, "wrong": wrong}))
    raise SystemExit(1 if wrong else 0)


def run_soak(arguments: argparse.Namespace) -> tuple[dict[str, object], list[str]]:
    """Serve all clients in this process; returns the figures, and the checks that failed."""
    with contextlib.closing(asyncio.new_event_loop()) as loop:  # start gRPC's own threads, before threads are counted
        loop.run_until_complete(_touch_grpc())
    threads = set(threading.enumerate())
    # A cache for a few of the sequences only, so that some are preempted.
    config = EngineConfig(
        model=arguments.model, device=arguments.device, max_model_len=128, max_num_seqs=8, kv_cache_memory_gib=0.006
    )
    core = build_core(config)
    engine = ThreadedEngine(core, max_waiting=96, max_waiting_tokens=1 << 16, ageing_s=config.ageing_s)
    soak, memory = asyncio.run(soak_server(core, engine, arguments))
    engine.close()
    core.check()
    left = [t.name for t in threading.enumerate() if t not in threads and t.name.startswith(("draftline", "asyncio"))]
    soak.wrong += [f"a thread is left: {name}" for name in left]
    if memory[1] - memory[0] > GROWTH_MIB:
        soak.wrong.append(f"memory grew from {memory[0]:.0f} to {memory[1]:.0f} MiB in the second half")
    stats = engine.stats()
    figures: dict[str, object] = {
        "requests": arguments.requests,
        "steps": stats.steps,
        "failed_steps": soak.faults,
        "preemptions": stats.preemptions,
        "memory_mib": [round(value) for value in memory],
        "ends": dict(sorted(soak.ends.items())),
    }
    return figures, soak.wrong


async def _touch_grpc() -> None:
    async with grpc.aio.insecure_channel("127.0.0.1:9"):
        pass


if __name__ == "__main__":
    main()
