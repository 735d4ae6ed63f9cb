"""``run_batch``: send the requests of a batch to a server over HTTP, and write their answers as they come."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable

import httpx2

from draftline.engine.batch.lines import BatchLine, answer_line, invalid_line, problem_of
from draftline.engine.batch.output import AnswerFile
from draftline.engine.errors import DraftlineError

RETRIES = 8
"""How often a request is sent again that the server had no room for, or could not be reached with."""

FIRST_RETRIES = 2
"""The same until the server has answered once: it is not running, or its address is wrong, or of another protocol."""

MAX_WAIT_S = 30.0
"""Longest wait before that, in seconds."""

_WINDOW = 4
"""Lines that may wait for an earlier one, for each that runs: bounds the memory of answers in order."""

_BUSY = (408, 429, 502, 503)
_REFUSED = (401, 403)
"""The statuses with which a server refuses all requests of a client."""


class BatchStoppedError(DraftlineError):
    """The server of a batch cannot be reached, or refuses all of it.

    Requests without an answer are sent by the next run.
    """


async def run_batch(
    lines: Iterable[BatchLine],
    client: httpx2.AsyncClient,
    answers: AnswerFile,
    *,
    concurrency: int,
    in_order: bool,
    progress: Callable[[], object],
) -> None:
    """Answer those lines that have no answer yet.

    Args:
        lines: the batch.
        client: of the server.
        answers: receives the answers.
        concurrency: requests in flight at once.
        in_order: write the answers in the order of the lines, not as they come.
        progress: called after each answer.

    Raises:
        BatchStoppedError: the server is away for too long, or knows no such token.
    """
    running = asyncio.Semaphore(concurrency)
    window = asyncio.Semaphore(_WINDOW * concurrency)
    reached = asyncio.Event()
    previous: asyncio.Task[None] | None = None
    try:
        async with asyncio.TaskGroup() as tasks:
            for line in lines:
                if line.custom_id in answers.answered:
                    continue
                await window.acquire()
                before = previous if in_order else None
                previous = tasks.create_task(_one(line, client, reached, answers, running, window, before, progress))
    except ExceptionGroup as group:
        raise group.exceptions[0] from None


async def _one(
    line: BatchLine,
    client: httpx2.AsyncClient,
    reached: asyncio.Event,
    answers: AnswerFile,
    running: asyncio.Semaphore,
    window: asyncio.Semaphore,
    before: asyncio.Task[None] | None,
    progress: Callable[[], object],
) -> None:
    async with running:
        written, failed = await _answer(line, client, reached)
    if before is not None:
        await asyncio.wait({before})
        if before.cancelled() or before.exception() is not None:
            return  # the batch ends, and has no gaps
    answers.write(written, is_error=failed)
    window.release()
    progress()


async def _answer(line: BatchLine, client: httpx2.AsyncClient, reached: asyncio.Event) -> tuple[bytes, bool]:
    """The line of the answer, and whether it is an error. Sets ``reached`` once the server has answered."""
    if line.body is None:
        return invalid_line(line.custom_id, line.error), True
    for attempt in range(RETRIES + 1):
        try:
            response = await client.post(line.url, json=line.body, headers={"x-request-id": _header(line.custom_id)})
        except httpx2.TransportError as error:
            if attempt >= (RETRIES if reached.is_set() else min(FIRST_RETRIES, RETRIES)):
                problem = f"{client.base_url}: no server answers in HTTP: {error or type(error).__name__}"
                raise BatchStoppedError(problem) from error
            await asyncio.sleep(_wait(attempt, None))
            continue
        except ValueError as error:  # the body has numbers that JSON does not have
            return invalid_line(line.custom_id, f"the body cannot be sent: {error}"), True
        reached.set()
        if response.status_code not in _BUSY or attempt == RETRIES:
            break
        await asyncio.sleep(_wait(attempt, response.headers.get("retry-after-ms")))
    try:
        body = response.json()
    except ValueError:
        body = response.text
    if response.status_code in _REFUSED:
        raise BatchStoppedError(f"the server refuses the batch with {response.status_code}: {problem_of(body)[1]}")
    return answer_line(line.custom_id, response.status_code, body), response.status_code != 200


def _wait(attempt: int, asked_ms: str | None) -> float:
    """Seconds until the next attempt: what the server asks for, or longer each time; never all at once."""
    asked = float(asked_ms) / 1000 if asked_ms is not None and asked_ms.isdecimal() else 0.25 * 2**attempt
    return min(max(asked, 0.05), MAX_WAIT_S) * random.uniform(1.0, 1.5)


def _header(name: str) -> str:
    return name.encode("ascii", "replace").decode()
