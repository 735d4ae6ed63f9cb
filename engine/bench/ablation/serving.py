"""The server of a variant, a process of its own: ``python -m draftline.engine.bench.ablation.serving SPEC``.

It prints one line of JSON when it serves, and stops when its standard input ends, as it does when the process that
started it ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import uvloop

from draftline.engine.config import EngineConfig
from draftline.engine.errors import DraftlineError
from draftline.engine.process.remote_engine import RemoteEngine
from draftline.engine.process.replicas import start_replicas
from draftline.engine.process.startup import keep_heap, start_process
from draftline.engine.server.config import ServerConfig
from draftline.engine.server.server import Server

if TYPE_CHECKING:
    from draftline.engine.threaded_engine import ThreadedEngine

_WORKER = "draftline.engine.bench.ablation.worker"


def _load(config: EngineConfig, names: list[str], engine_process: bool) -> ThreadedEngine | RemoteEngine:
    if engine_process:
        return RemoteEngine(config, start_replicas(config, worker=(_WORKER, ",".join(names))))
    from draftline.engine.bench.ablation.substitutes import substitutes_of  # imports torch
    from draftline.engine.threaded_engine import start_engine

    return start_engine(config, substitutes=substitutes_of(names))


async def _serve(config: EngineConfig, names: list[str], engine_process: bool) -> None:
    server = Server(ServerConfig(port=0, log_requests=False))
    await server.start()
    try:
        engine = await asyncio.to_thread(_load, config, names, engine_process)
    except BaseException:
        await server.abort()
        raise
    keep_heap()
    await server.serve(engine)
    info = engine.info
    ready = {
        "address": server.address,
        "memory": asdict(info.memory),
        "cache_tokens": info.cache_blocks * info.block_size,
        "drafters": info.drafters,
        "quantization": info.quantization,
        "system_fingerprint": info.system_fingerprint,
    }
    print(json.dumps(ready), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.drain()
    await asyncio.to_thread(engine.close)


def main(spec: str) -> None:
    """Serve until standard input ends.

    ``spec`` has the engine's options, the substitutes, and whether it has a process.
    """
    start_process("warning", "text")
    values = json.loads(spec)
    config = EngineConfig.model_validate(values["options"])
    try:
        uvloop.run(_serve(config, values["substitutes"], values["engine_process"]))
    except DraftlineError as error:
        raise SystemExit(str(error)) from None  # the last line, which the result has as its error


if __name__ == "__main__":
    main(sys.argv[1])
