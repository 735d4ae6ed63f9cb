"""Long prompts are tokenized in worker processes: in turns, within bounds, and again after a process died."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import threading
from collections.abc import AsyncIterator

import pytest
from fake_engine import fake_info
from fake_tokenizer import ByteTokenizer

from draftline.engine.chat.calls import ToolCall
from draftline.engine.chat.messages import Chat
from draftline.engine.errors import InvalidRequestError, QueueFullError
from draftline.engine.server.tokenizer_pool import LONG, TokenizerPool, prompt_size
from draftline.models.tokenization.rendering import Rendering
from draftline.structured.job_queue import JobQueue, QueuedJob

TEXT = "x" * LONG
CALL = {"id": "c", "function": {"name": "f", "arguments": json.dumps({"a": TEXT})}}


@pytest.fixture
async def pool() -> AsyncIterator[TokenizerPool]:
    pool = TokenizerPool(ByteTokenizer(), fake_info())  # type: ignore[arg-type]
    yield pool
    await asyncio.to_thread(pool.close)


@pytest.mark.usefixtures("lowest_priority")
async def test_a_process_tokenizes_at_the_lowest_priority_and_is_replaced_when_it_dies(pool: TokenizerPool) -> None:
    assert list(await pool.token_ids(TEXT, "a")) == list(TEXT.encode())
    [process] = pool._processes._idle
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19
    assert len(await pool.token_ids(Chat([("user", TEXT)]), "a")) == len(f"user: {TEXT}\nassistant:")
    with pytest.raises(InvalidRequestError, match="takes the roles system, user"):
        await pool.token_ids(Chat([("wizard", TEXT)]), "a")
    assert pool._processes._idle == [process]
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert len(await pool.token_ids(TEXT, "a")) == LONG


@pytest.mark.parametrize(
    ("prompt", "is_long"),
    [
        (TEXT[1:], False),
        (TEXT, True),
        (Chat([{"role": "assistant", "content": "", "tool_calls": [CALL]}]), True),
        (Chat([{"role": "assistant", "content": "", "tool_calls": [ToolCall(TEXT, "f", "{}")]}]), True),
        (Chat([{"role": "assistant", "content": "", "tool_calls": [ToolCall("", "", "")] * 300}]), True),
        (Chat([{"role": "tool", "content": "", "tool_call_id": TEXT}]), True),
        (Chat([("user", "")] * 300), True),
        (Chat([("user", "a")], Rendering({"today": TEXT})), True),
        (Chat([{"role": "assistant", "content": "", "reasoning": TEXT}]), True),
        (Chat([("user", "a")], tools=[{"name": "f", "description": TEXT}]), True),
    ],
)
def test_the_size_of_a_prompt_has_all_that_a_template_may_show(prompt: str | Chat, is_long: bool) -> None:
    assert (prompt_size(prompt) >= LONG) is is_long


async def test_callers_take_turns_and_prompts_that_nobody_waits_for_are_dropped(
    pool: TokenizerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, goes_on, order = threading.Event(), threading.Event(), []

    def ask(self: TokenizerPool, prompt: str, job: object) -> list[int]:
        entered.set()
        goes_on.wait()
        order.append(prompt[0])
        return []

    monkeypatch.setattr(TokenizerPool, "_ask", ask)
    pool._queue = JobQueue(1, 8, "long prompts wait")
    heavy = [asyncio.create_task(pool.token_ids(f"0{TEXT}", "heavy"))]
    await asyncio.sleep(0)
    await asyncio.to_thread(entered.wait)
    heavy += [asyncio.create_task(pool.token_ids(f"{n}{TEXT}", "heavy")) for n in range(1, 9)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFullError, match="8 long prompts wait"):
        await pool.token_ids(TEXT, "light")
    for task in heavy[4:]:
        task.cancel()
    await asyncio.sleep(0)
    light = asyncio.create_task(pool.token_ids(f"light{TEXT}", "light"))
    await asyncio.sleep(0)
    goes_on.set()
    await light
    await asyncio.gather(*heavy, return_exceptions=True)
    assert sorted(order) == ["0", "1", "2", "3", "l"]
    assert order.index("l") <= 2


async def test_nothing_of_prompts_that_are_done_is_held(pool: TokenizerPool) -> None:
    before = set(map(id, jobs()))
    asked = [asyncio.create_task(pool.token_ids(f"{number}{TEXT}", str(number % 3))) for number in range(12)]
    await asyncio.sleep(0)
    for task in asked[8:]:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    del asked, task
    for _ in range(100):
        left = [job for job in jobs() if id(job) not in before]
        if not left:
            break
        del left
        await asyncio.sleep(0.05)
    else:
        pytest.fail("jobs are held, with their prompts and tokens")
    assert len(pool._processes._idle) <= len(pool._queue._threads)
    assert not pool._processes._busy


def jobs() -> list[object]:
    gc.collect()
    return [one for one in gc.get_objects() if type(one) is QueuedJob]
