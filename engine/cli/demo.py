"""``draftline demo``: a server of our own, three questions at once over one stream, and an orderly end."""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Annotated

import grpc
import grpc.aio
import typer
import yaml
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub
from rich.console import Console

from draftline.engine.cli.demo_view import LineView, PanelView, View
from draftline.engine.cli.serve import LISTENING
from draftline.engine.client.convert import chat_message
from draftline.engine.config import EngineConfig
from draftline.engine.errors import DraftlineError
from draftline.engine.protocol import Chat
from draftline.v1 import engine_pb2 as pb
from draftline.v1.engine_pb2_grpc import InferenceServiceStub

QUESTIONS: Mapping[str, str] = {
    "sky": "Why is the sky blue? Answer in two sentences.",
    "rivers": "Name three long rivers and the countries they flow through.",
    "poem": "Write a short poem about the sea.",
}
COMMAND = (sys.executable, "-m", "draftline")
"""How the server is started, before its arguments."""

_STOP_S = 30.0
"""Seconds that the server gets to end after SIGTERM."""

_TAIL_LINES = 20


class DemoError(DraftlineError):
    """The demo's server did not do its part; the message says what it last said."""


def demo(
    max_tokens: Annotated[int, typer.Option(min=1, help="most tokens of each answer")] = 96,
    *,
    engine: EngineConfig,
) -> None:
    """Show it at work: start a server, ask three questions at once over one stream, stop it again.

    **Examples**

    - `draftline demo`
    - `draftline demo --model ./Qwen3-0.6B --max-tokens 200`
    """
    asyncio.run(_demo(Console(), engine, max_tokens))


async def _demo(console: Console, engine: EngineConfig, max_tokens: int) -> None:
    started = time.monotonic()
    async with _server(console, engine) as address, grpc.aio.insecure_channel(address) as channel:
        with console.status("loading the model"):
            await _serving(channel)
        console.print(f"ready after {time.monotonic() - started:.1f} s")
        model = await InferenceServiceStub(channel).GetModel(pb.GetModelRequest())
        console.print(f"{model.model}: {model.family}, {model.quantization} weights, {model.dtype} on {model.device}")
        console.print(f"{len(QUESTIONS)} requests on one stream:\n")
        asked = time.monotonic()
        with (PanelView if console.is_terminal else LineView)(console, QUESTIONS) as view:
            ends = await _ask(channel, view, max_tokens)
        _report(console, ends, time.monotonic() - asked)


async def _ask(channel: grpc.aio.Channel, view: View, max_tokens: int) -> dict[str, pb.Finished]:
    """Ask all questions over one Session, show the answers as they come, and return their ends."""
    session = InferenceServiceStub(channel).Session()
    sampling = pb.SamplingParams(max_tokens=max_tokens, temperature=0.0)
    for name, question in QUESTIONS.items():
        chat = chat_message(Chat((("user", question),)))
        request = pb.GenerateRequest(chat=chat, sampling=sampling)
        await session.write(pb.SessionRequest(request_id=name, submit=request))
    await session.done_writing()
    ends: dict[str, pb.Finished] = {}
    while isinstance(response := await session.read(), pb.SessionResponse):
        match response.WhichOneof("event"):
            case "delta":
                view.add(response.request_id, response.delta.text)
            case "finished":
                ends[response.request_id] = response.finished
                view.end(response.request_id)
            case _:
                raise DemoError(f"{response.request_id}: {response.error.message}")
    return ends


def _report(console: Console, ends: Mapping[str, pb.Finished], elapsed_s: float) -> None:
    console.print()
    for name, end in ends.items():
        tokens = end.usage.completion_tokens
        reason = pb.FinishReason.Name(end.finish_reason).removeprefix("FINISH_REASON_").lower()
        speed = tokens / end.timing.total_s
        console.print(f"{name}: {tokens} tokens, {speed:.1f} tokens/s, finished: {reason}")
    total = sum(end.usage.completion_tokens for end in ends.values())
    console.print(f"together: {total} tokens in {elapsed_s:.1f} s, {total / elapsed_s:.1f} tokens/s")


async def _serving(channel: grpc.aio.Channel) -> None:
    """Wait until the server's health is SERVING."""
    async for health in HealthStub(channel).Watch(health_pb2.HealthCheckRequest()):  # type: ignore[attr-defined]
        if health.status == health_pb2.HealthCheckResponse.SERVING:
            return


@asynccontextmanager
async def _server(console: Console, engine: EngineConfig) -> AsyncIterator[str]:
    """A server process on a free loopback port: its address. At the end it is stopped, and its exit reported."""
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "stderr").open("w+b") as log:
        config = Path(folder) / "engine.yaml"
        config.write_text(yaml.safe_dump(engine.model_dump(exclude_unset=True)))
        arguments = ("serve", "--config", str(config), "--host", "127.0.0.1", "--port", "0")
        process = await asyncio.create_subprocess_exec(*COMMAND, *arguments, stdout=asyncio.subprocess.PIPE, stderr=log)
        try:
            address = await _address(process, log)
            console.print(f"server: process {process.pid} listens on {address}")
            try:
                yield address
            except grpc.RpcError as error:
                raise await _failure(process, log, error) from error
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(_STOP_S):
                await process.communicate()
            console.print(f"server: stopped by SIGTERM, exit code {process.returncode}")
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()
        if process.returncode:
            raise DemoError(f"the server exited with code {process.returncode}:\n{_tail(log)}")


async def _address(process: asyncio.subprocess.Process, log: IO[bytes]) -> str:
    """Where the server says that it listens."""
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    _, found, address = line.partition(LISTENING)
    if not found:
        code = await process.wait()
        raise DemoError(f"the server exited with code {code}:\n{_tail(log)}")
    return address.strip()


async def _failure(process: asyncio.subprocess.Process, log: IO[bytes], error: grpc.RpcError) -> DemoError:
    """What a failed call means: mostly that the server has died, which its process shows a moment later."""
    try:
        async with asyncio.timeout(1.0):
            code = await process.wait()
    except TimeoutError:
        return DemoError(f"a call failed: {error}")
    return DemoError(f"the server exited with code {code}:\n{_tail(log)}")


def _tail(log: IO[bytes]) -> str:
    log.seek(0)
    return "".join(line.decode(errors="replace") for line in deque(log, maxlen=_TAIL_LINES)).rstrip()
