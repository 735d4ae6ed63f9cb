"""One tiny random model behind the four faces: `LLM`, `AsyncEngine`, `Client` and `AsyncClient`, called in the same way."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from patience import PATIENCE_S

from draftline import LLM, AsyncClient, AsyncEngine, Client
from draftline.engine.config import EngineOptions
from draftline.engine.server.config import ServerConfig
from draftline.engine.server.server import Server

FACES = ("LLM", "AsyncEngine", "Client", "AsyncClient")

OPTIONS: EngineOptions = {
    "load_format": "dummy",
    "device": "cpu",
    "dtype": "float32",
    "max_num_seqs": 64,
    "kv_cache_memory_gib": 0.02,
}


class FourFaces:
    """The faces by their names. `call` hides which of them is asynchronous, or yields outputs as they grow."""

    def __init__(
        self, llm: LLM, engine: AsyncEngine, client: Client, async_client: AsyncClient, run: Callable[..., Any]
    ):
        self.by_name = {"LLM": llm, "AsyncEngine": engine, "Client": client, "AsyncClient": async_client}
        self.llm = llm
        self.run = run

    def call(self, face: str, verb: str, *arguments: Any, **options: Any) -> Any:
        """Call a face's method, and wait for its result. `AsyncEngine`'s last output comes in a list, as the others'."""
        if face == "LLM" and verb != "compile":
            options.setdefault("use_tqdm", False)
        if verb == "extract":
            options.setdefault("use_tqdm", False)
        method = getattr(self.by_name[face], verb)
        if face in ("LLM", "Client"):
            return method(*arguments, **options)
        return self.run(_finished(method, arguments, options))


async def _finished(method: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    outcome = method(*arguments, **options)
    if isinstance(outcome, Coroutine):
        return await outcome
    async for output in outcome:
        last = output
    return [last]


@contextlib.contextmanager
def four_faces(model: str, **options: Any) -> Iterator[FourFaces]:
    """Load the model twice: for `LLM`, and for an `AsyncEngine` that a server on a loopback socket serves too."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(PATIENCE_S)

    async def serve(stack: contextlib.AsyncExitStack) -> tuple[AsyncEngine, Server, AsyncClient]:
        engine = await stack.enter_async_context(await AsyncEngine.create(model, **{**OPTIONS, **options}))
        server = Server(ServerConfig(port=0))
        await server.start()
        stack.push_async_callback(server.abort)
        await server.serve(engine._engine)
        return engine, server, await stack.enter_async_context(AsyncClient(server.address))

    async def make_stack() -> contextlib.AsyncExitStack:
        return contextlib.AsyncExitStack()

    try:
        stack = run(make_stack())
        try:
            engine, server, async_client = run(serve(stack))
            with LLM(model, **{**OPTIONS, **options}) as llm, Client(server.address) as client:
                yield FourFaces(llm, engine, client, async_client, run)
        finally:
            run(stack.aclose())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
