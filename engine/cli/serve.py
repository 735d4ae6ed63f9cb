"""``draftline serve``: the gRPC and HTTP server as a process, from opening its port to the end of its last request."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import typer
import uvloop

from draftline.engine.cli.errors import print_error, writable_output
from draftline.engine.config import EngineConfig
from draftline.engine.errors import EngineStoppedError
from draftline.engine.process import engine_process
from draftline.engine.process.engine_process import EngineProcess
from draftline.engine.process.replicas import start_replicas
from draftline.engine.process.startup import keep_heap, runs_on_gpu, start_process
from draftline.engine.server.config import ServerConfig

if TYPE_CHECKING:
    from draftline.engine.process.remote_engine import RemoteEngine
    from draftline.engine.threaded_engine import ThreadedEngine

logger = logging.getLogger(__name__)

_EngineT = TypeVar("_EngineT")

LISTENING = "listening on "
READY = "ready: "
"""Prefixes of the two lines on standard output that a parent process can wait for."""

CLOSE_S = engine_process.CLOSE_S + 1.0
"""Seconds for the engine's close. A process of the engine's own that hangs is killed before; a step in this process
cannot be."""


def serve(engine: EngineConfig, server: ServerConfig) -> None:
    """Serve a model over gRPC, and over HTTP with --http-port.

    Sessions, generation, health and reflection are on one port, OpenAI's API is on another. SIGTERM, SIGINT or SIGHUP
    lets running requests finish, for at most --drain-timeout seconds. A second SIGTERM or SIGINT ends the server at
    once.

    **Examples**

    - `draftline serve` serves the embedded SmolLM2-135M-Instruct on 127.0.0.1:50051
    - `draftline serve --model ./Qwen3-0.6B --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem --tokens tokens.yaml`
    - `draftline serve --http-port 8000` also answers OpenAI's clients at http://127.0.0.1:8000/v1
    - `draftline serve --config draftline.yaml --max-num-seqs 64`
    - `grpcurl -plaintext -d '{"text": "The sky is"}' localhost:50051 draftline.v1.InferenceService/Generate`
    """
    start_process(server.log_level, server.log_format)
    replicas = _start_replicas(engine, server)
    try:
        uvloop.run(_serve(engine, server, replicas))
    except BaseException:
        for replica in replicas:
            replica.abandon()
        raise


def _start_replicas(engine: EngineConfig, server: ServerConfig) -> list[EngineProcess]:
    """The engine's processes; none if it runs in this one.

    On a CPU a second process gains nothing: the server's work takes the same cores.
    """
    own = server.engine_process
    if own is None:
        # Tested without torch: a server with a remote engine never imports it.
        own = server.data_parallel_size > 1 or runs_on_gpu(engine.device)
    if not own:
        return []
    return start_replicas(engine, server.data_parallel_size, log_level=server.log_level, log_format=server.log_format)


async def _serve(engine_config: EngineConfig, server_config: ServerConfig, replicas: list[EngineProcess]) -> None:
    # Imported here, as the server takes a second to import, in which the engine's processes import torch.
    from draftline.engine.cli.backend import describe
    from draftline.engine.server.server import Server

    stop = _stop_event()
    server = Server(server_config)
    await server.start()
    _say(LISTENING + server.address)
    if server.http_address is not None:
        scheme = "http" if server_config.tls_cert is None else "https"
        _say(f"{LISTENING}{scheme}://{server.http_address}")
    if server.metrics_url is not None:
        _say(f"metrics at {server.metrics_url}")
    loading = asyncio.ensure_future(_load(engine_config, replicas))
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not loading.done():
        _exit_now(0)  # the thread that loads cannot be stopped
    try:
        engine = await loading
    except BaseException:
        stopping.cancel()
        await server.abort()
        raise
    keep_heap()
    await server.serve(engine)
    _say(READY + describe(engine.info))
    ended = asyncio.wrap_future(engine.stopped)
    either: tuple[asyncio.Future[Any], ...] = (stopping, ended)
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if ended.done():
        stopping.cancel()
        await server.drain()  # its requests have failed: clients receive the errors
        with suppress(OSError):  # standard error may be closed
            print_error(str(ended.result() or EngineStoppedError("the engine was closed")))
        _exit_now(1)  # its step may go on: a thread in a library's code aborts a process whose interpreter is gone
    logger.info("draining: waiting up to %g s for running requests", server_config.drain_timeout)
    if not await server.drain():
        logger.warning("some requests did not finish within --drain-timeout and were cut off")
    closing = asyncio.ensure_future(asyncio.to_thread(engine.close))
    closed, _ = await asyncio.wait({closing}, timeout=CLOSE_S)
    _say("stopped")
    if not closed:
        logger.warning("a step of the engine did not end within %g s and was left", CLOSE_S)
        _exit_now(0)
    closing.result()


def _stop_event() -> asyncio.Event:
    """Make an event that the first SIGTERM, SIGINT or SIGHUP sets. A second SIGTERM or SIGINT ends the process."""
    stop = asyncio.Event()

    def on_signal(number: int) -> None:
        # SIGHUP does not insist: systemd sends it to a login session's processes right behind SIGTERM.
        if stop.is_set() and number != signal.SIGHUP:
            # Requests are cut off: a failure, unless a person has asked for it.
            _exit_now(128 + number if number == signal.SIGINT else 1)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as nohup leaves it
            asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
    return stop


async def _load(config: EngineConfig, replicas: list[EngineProcess]) -> ThreadedEngine | RemoteEngine:
    """Load the engine on a daemon thread, which does not keep the process alive.

    Raises:
        ModelLoadError: the model cannot be found or loaded.
    """

    def load() -> ThreadedEngine | RemoteEngine:
        from draftline.engine.cli.models import find_models

        find_models(config)
        if replicas:
            from draftline.engine.process.remote_engine import RemoteEngine

            return RemoteEngine(config, replicas)
        from draftline.engine.threaded_engine import start_engine  # imports torch, which takes seconds
        from draftline.structured.compiler import ConstraintCompiler

        return start_engine(config, prepare=ConstraintCompiler.prepare)

    return await _on_daemon_thread(load)


async def _on_daemon_thread(work: Callable[[], _EngineT]) -> _EngineT:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_EngineT] = loop.create_future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001  raised where the result is awaited
            loop.call_soon_threadsafe(done.set_exception, error)
        else:
            loop.call_soon_threadsafe(done.set_result, result)

    threading.Thread(target=run, name="draftline-load", daemon=True).start()
    return await done


def _say(line: str) -> None:
    with writable_output():  # a server serves on, whether its output can be written or not
        typer.echo(f"draftline: {line}")
        sys.stdout.flush()


def _exit_now(code: int) -> NoReturn:
    with writable_output():
        sys.stdout.flush()
    logging.shutdown()
    os._exit(code)
