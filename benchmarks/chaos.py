"""A soak test: a real server with clients that cancel, disconnect, stall and send nonsense, while steps fail.

    python benchmarks/chaos.py --requests 2000
    python benchmarks/chaos.py --requests 0 --attack all --attack-rounds 3 --crowd

Clients send a few dozen different requests, each of which was first run alone. A request that finishes must have the
same tokens as alone. At the end all blocks must be free, no task or thread may be left, and memory may not have grown
since half of the requests.

``--attack`` then attacks a server of its own, and reports the gaps in another client's stream: the median may double (under
long prompts it may be as long as ``--inter-token-target``), and no gap may be longer than 150 ms. ``--crowd`` reports the
time to the first token behind another caller's 200 requests, which may be 1.5 s.

The result is a JSON line, and a table on standard error; the exit status is 1 if a check fails. SIGINT and SIGTERM end it
early, with the result so far. Two cores take some 5 minutes for 5,000 clients, and 6 for a round of all attacks.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import grpc.aio
import torch
from attacks.run import Round, chosen, report, run_attacks, run_crowd
from attacks.soak import Clients, Soak, inject_faults, requests, tokens_of
from common.arguments import fill, positive_int, refuse, whole_number

from draftline.engine.bench.provenance import conditions
from draftline.engine.build import build_core
from draftline.engine.config import EngineConfig
from draftline.engine.core import Core
from draftline.engine.server.config import ServerConfig
from draftline.engine.server.server import Server
from draftline.engine.threaded_engine import ThreadedEngine

if TYPE_CHECKING:
    from draftline.v1.engine_pb2_grpc import InferenceServiceAsyncStub
else:
    from draftline.v1.engine_pb2_grpc import InferenceServiceStub as InferenceServiceAsyncStub

GROWTH_MIB = 64.0
"""The growth of memory in the second half that counts as none: slack of the allocator."""


async def soak_server(core: Core, engine: ThreadedEngine, arguments: argparse.Namespace, soak: Soak) -> list[float]:
    """Serve each request alone, then all clients; return the memory in MiB half way and at the end."""
    rng, started = random.Random(arguments.seed), time.monotonic()
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
        if number % max(1, arguments.requests // 10) == 0:
            say(f"soak: {number} of {arguments.requests} clients, {time.monotonic() - started:.0f} s")
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
    return memory


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


_OF_SOAK = {"kinds": 32, "concurrency": 40, "faults": 0.02, "seed": 0}
"""The arguments of the soak besides --requests, with their defaults."""

_OF_ATTACKS = {"attack_rounds": 1, "attack_seconds": 20.0}
"""The arguments of --attack, with their defaults."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="an HF folder, a .gguf file or a hub id (default: smollm2)")
    parser.add_argument(
        "--requests", type=whole_number, default=2000, help="clients in all (default: 2000); 0 for no soak"
    )
    parser.add_argument("--kinds", type=positive_int, help="different requests (default: 32)")
    parser.add_argument("--concurrency", type=positive_int, help="clients at a time (default: 40)")
    parser.add_argument("--faults", type=float, help="the share of steps that fail (default: 0.02)")
    parser.add_argument("--seed", type=int, help="the seed of clients and faults (default: 0)")
    parser.add_argument("--device", default="auto", help="cpu, cuda, … (default: a GPU if there is one)")
    parser.add_argument("--attack", default="", metavar="NAMES", help="attacks with commas between them, or all")
    parser.add_argument("--attack-rounds", type=positive_int, help="how often each attack is run (default: 1)")
    parser.add_argument("--crowd", action="store_true", help="measure the wait behind another caller's 200 requests")
    parser.add_argument("--attack-seconds", type=float, help="the length of each attack (default: 20)")
    arguments = parser.parse_args(argv)
    attacks = chosen(arguments.attack)
    if not arguments.requests:
        refuse(parser, arguments, _OF_SOAK, "needs --requests")
    if not attacks:
        refuse(parser, arguments, _OF_ATTACKS, "needs --attack")
    if not (arguments.requests or attacks or arguments.crowd):
        parser.error("--requests 0 needs --attack or --crowd")
    fill(arguments, {**_OF_SOAK, **_OF_ATTACKS})
    started = time.monotonic()
    gpu = "cuda" if torch.cuda.is_available() else "cpu"
    begun = conditions(gpu if arguments.device == "auto" else arguments.device)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    done = Done()
    try:
        run(arguments, attacks, done)
    except KeyboardInterrupt:
        done.soak.wrong.append("interrupted")
    figures, harm = report(done.rounds, done.waits)
    wrong = done.soak.wrong + harm
    head = {
        **begun,
        "model": arguments.model,
        "seconds": round(time.monotonic() - started, 1),
    }
    ends = dict(sorted(done.soak.ends.items()))
    print(json.dumps({**head, **done.figures, "ends": ends, **figures, "wrong": wrong}), flush=True)
    raise SystemExit(1 if wrong else 0)


@dataclass
class Done:
    """What has been done so far. An interruption leaves it as it is.

    Attributes:
        soak: the events of the soak, and all failed checks.
        figures: of the soak, once it has ended.
        rounds: of the attacks.
        waits: behind the crowd, in seconds.
    """

    soak: Soak = field(default_factory=Soak)
    figures: dict[str, object] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    waits: list[float] | None = None


def run(arguments: argparse.Namespace, attacks: Sequence[str], done: Done) -> None:
    """Do what the arguments ask for, and keep account of it in ``done``."""
    if arguments.requests:
        run_soak(arguments, done)
    if attacks:
        lasts = 2 * arguments.attack_seconds + 7
        say(f"attacks: {lasts * len(attacks) * arguments.attack_rounds / 60:.0f} minutes or a little more")
        rounds = run_attacks(
            attacks, arguments.attack_rounds, arguments.model, arguments.device, arguments.attack_seconds
        )
        for each in rounds:
            say(str(each))
            done.rounds.append(each)
    if arguments.crowd:
        done.waits = run_crowd(arguments.model, arguments.device)


def say(progress: str) -> None:
    """Print a line of progress to standard error."""
    print(progress, file=sys.stderr, flush=True)


def run_soak(arguments: argparse.Namespace, done: Done) -> None:
    """Serve all clients in this process."""
    soak = done.soak
    with contextlib.closing(asyncio.new_event_loop()) as loop:  # start gRPC's own threads, before threads are counted
        loop.run_until_complete(_touch_grpc())
    threads = set(threading.enumerate())
    # A cache for a few of the sequences only, so that some are preempted.
    config = EngineConfig(
        model=arguments.model, device=arguments.device, max_model_len=128, max_num_seqs=8, kv_cache_memory_gib=0.006
    )
    core = build_core(config)
    with ThreadedEngine(core, max_waiting=96, max_waiting_tokens=1 << 16, ageing_s=config.ageing_s) as engine:
        memory = asyncio.run(soak_server(core, engine, arguments, soak))
    core.check()
    left = [t.name for t in threading.enumerate() if t not in threads and t.name.startswith(("draftline", "asyncio"))]
    soak.wrong += [f"a thread is left: {name}" for name in left]
    if memory[1] - memory[0] > GROWTH_MIB:
        soak.wrong.append(f"memory grew from {memory[0]:.0f} to {memory[1]:.0f} MiB in the second half")
    stats = engine.stats()
    done.figures = {
        "requests": arguments.requests,
        "steps": stats.steps,
        "failed_steps": soak.faults,
        "preemptions": stats.preemptions,
        "memory_mib": [round(value) for value in memory],
    }


async def _touch_grpc() -> None:
    async with grpc.aio.insecure_channel("127.0.0.1:9"):
        pass


if __name__ == "__main__":
    main()
