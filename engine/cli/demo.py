"""``draftline demo``: a server process, four questions at once over one stream, and an orderly end."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import IO, Annotated

import grpc
import grpc.aio
import typer
import yaml
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub
from rich.console import Console

from draftline.engine.chat.messages import Chat
from draftline.engine.cli.generate import summary
from draftline.engine.cli.serve import LISTENING
from draftline.engine.cli.views.demo import LineView, PanelView, View
from draftline.engine.client.convert import finished, request_message
from draftline.engine.config import EngineConfig
from draftline.engine.errors import DraftlineError, temporary_folder
from draftline.engine.outputs import Finished
from draftline.engine.params import SamplingParams
from draftline.engine.protocol import GenerateRequest
from draftline.engine.schema import Schema
from draftline.v1 import engine_pb2 as pb
from draftline.v1.engine_pb2_grpc import InferenceServiceStub

QUESTIONS: Mapping[str, str] = {
    "sky": "Why is the sky blue? Answer in two sentences.",
    "rivers": "Name three long rivers and the countries they flow through.",
    "poem": "Write a short poem about the sea.",
    "person": "Invent a person: a name, an age, a profession and a city.",
}
SCHEMAS: Mapping[str, Mapping[str, object]] = {
    "person": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 40},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "profession": {"type": "string", "maxLength": 40},
            "city": {"type": "string", "maxLength": 40},
        },
        "required": ["name", "age", "profession", "city"],
        "additionalProperties": False,
    },
}
"""The JSON Schemas that answers must match, by question."""

COMMAND = (sys.executable, "-m", "draftline")
"""The command that starts the server, before its arguments."""

_STOP_S = 30.0
"""Timeout of the server's end after SIGTERM, or after a connection to it broke, in seconds."""

_SCHEMA_TOKENS = 64
"""Lower bound of an answer's max_tokens where it has a schema: enough for a whole document."""

_TAIL_LINES = 20


class DemoError(DraftlineError):
    """The demo's server failed; the message ends with its last lines of output."""


@dataclass(slots=True)
class _Answer:
    """One answer: its text, and its end once it has come."""

    text: str = ""
    end: Finished | None = None


def demo(
    max_tokens: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="max tokens of an answer"),
    ] = 96,
    *,
    engine: EngineConfig,
) -> None:
    """Start a server, ask it four questions at once, and stop it.

    The questions share one stream. One of them asks for JSON by a schema. The summary of each answer has its
    speed and its accepted drafts.

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
            answers = await _ask(channel, view, max_tokens)
        _report(console, answers, time.monotonic() - asked)


async def _ask(channel: grpc.aio.Channel, view: View, max_tokens: int) -> dict[str, _Answer]:
    """Ask all questions over one Session, show the answers as they come, and return them."""
    session = InferenceServiceStub(channel).Session()
    for name in QUESTIONS:
        await session.write(pb.SessionRequest(request_id=name, submit=request_message(_request(name, max_tokens))))
    await session.done_writing()
    answers = {name: _Answer() for name in QUESTIONS}
    while isinstance(response := await session.read(), pb.SessionResponse):
        name = response.request_id
        match response.WhichOneof("event"):
            case "delta":
                answers[name].text += response.delta.text
                view.add(name, response.delta.text)
            case "finished":
                answers[name].end = finished(response.finished)
                view.end(name)
            case _:
                raise DemoError(f"{name}: {response.error.message}")
    return answers


def _request(name: str, max_tokens: int) -> GenerateRequest:
    chat = Chat((("user", QUESTIONS[name]),))
    if name not in SCHEMAS:
        return GenerateRequest(chat, SamplingParams(max_tokens=max_tokens, temperature=0))
    sampling = SamplingParams(max_tokens=max(max_tokens, _SCHEMA_TOKENS), temperature=0)
    return GenerateRequest(chat, sampling, Schema(SCHEMAS[name], whitespace="spaced", close_within_budget=True))


def _report(console: Console, answers: Mapping[str, _Answer], elapsed_s: float) -> None:
    """Print each answer's summary, the structured answers' values, and the totals."""
    console.print()
    ends = {name: answer.end for name, answer in answers.items() if answer.end is not None}
    for name, end in ends.items():
        console.print(f"{name}: {summary(end)}", highlight=False, soft_wrap=True)
    for name in SCHEMAS.keys() & ends.keys():
        values = json.loads(answers[name].text)
        shown = ", ".join(f"{key} {value!r}" for key, value in values.items())
        console.print(f"{name}: valid JSON by its schema: {shown}", markup=False, highlight=False, soft_wrap=True)
    total = sum(end.usage.completion_tokens for end in ends.values())
    line = f"together: {total} tokens in {elapsed_s:.1f} s, {total / elapsed_s:.1f} tokens/s"
    drafted = sum(end.speculation.drafted for end in ends.values())
    if drafted:
        accepted = sum(end.speculation.accepted for end in ends.values())
        [drafter, *_] = (end.speculation.drafter for end in ends.values() if end.speculation.drafted)
        line += f", {accepted} of {drafted} drafts accepted (drafter: {drafter})"
    console.print(line, highlight=False, soft_wrap=True)


async def _serving(channel: grpc.aio.Channel) -> None:
    """Wait until the server's health is SERVING."""
    async for health in HealthStub(channel).Watch(health_pb2.HealthCheckRequest()):  # type: ignore[attr-defined]
        if health.status == health_pb2.HealthCheckResponse.SERVING:
            return


@asynccontextmanager
async def _server(console: Console, engine: EngineConfig) -> AsyncIterator[str]:
    """Start a server process on a free loopback port, and yield its address.

    Stops it at the end, and reports its exit.
    """
    with temporary_folder() as folder, (folder / "stderr").open("w+b") as log:
        config = folder / "engine.yaml"
        config.write_text(yaml.safe_dump(engine.model_dump(exclude_unset=True)))
        arguments = ("serve", "--config", str(config), "--host", "127.0.0.1", "--port", "0")
        process = await asyncio.create_subprocess_exec(*COMMAND, *arguments, stdout=asyncio.subprocess.PIPE, stderr=log)
        try:
            address = await _address(process, log)
            console.print(f"server: process {process.pid} listens on {address}")
            try:
                yield address
            except grpc.aio.AioRpcError as error:
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
    """Read the address that the server prints."""
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    _, found, address = line.partition(LISTENING)
    if not found:
        code = await process.wait()
        raise DemoError(f"the server exited with code {code}:\n{_tail(log)}")
    return address.strip()


async def _failure(process: asyncio.subprocess.Process, log: IO[bytes], error: grpc.aio.AioRpcError) -> DemoError:
    """Explain a failed call.

    Where the connection broke the server has mostly died, and its process ends a little later.

    A server that ends may cancel its calls before the connection breaks.
    """
    if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S):
                code = await process.wait()
            return DemoError(f"the server exited with code {code}:\n{_tail(log)}")
    return DemoError(f"a call failed: {error}")


def _tail(log: IO[bytes]) -> str:
    log.seek(0)
    return "".join(line.decode(errors="replace") for line in deque(log, maxlen=_TAIL_LINES)).rstrip()
