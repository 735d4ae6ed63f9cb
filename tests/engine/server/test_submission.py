"""A request's timeout holds while it waits for its constraint and for its tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from endless_work import EndlessWork
from fake_engine import FakeEngine

from draftline.engine.errors import DeadlineExceededError
from draftline.engine.params import Constraint
from draftline.engine.protocol import GenerateRequest, Prompt
from draftline.engine.server.submission import prepared
from draftline.engine.server.tokenizer_pool import LONG


@pytest.mark.parametrize(
    "request_",
    [
        GenerateRequest("a", constraint=Constraint(regex="a"), timeout_s=0.01),
        GenerateRequest("a" * LONG, timeout_s=0.01),
    ],
    ids=["constraint", "prompt"],
)
async def test_a_timeout_ends_the_wait(request_: GenerateRequest, engine: FakeEngine) -> None:
    endless: Any = EndlessWork()
    engine.compile_with(endless)
    with pytest.raises(DeadlineExceededError):
        await prepared(engine, endless, request_)
    [future] = endless.futures
    assert future.cancelled()


async def test_the_engine_gets_the_time_that_is_left(engine: FakeEngine) -> None:
    class Slow:
        async def token_ids(self, prompt: Prompt, caller: str) -> Sequence[int]:
            await asyncio.sleep(0.01)
            return [1]

    slow: Any = Slow()
    hurried = await prepared(engine, slow, GenerateRequest("a" * LONG, timeout_s=60.0))
    assert hurried.timeout_s is not None
    assert hurried.timeout_s < 60
    assert (await prepared(engine, slow, GenerateRequest("a" * LONG))).timeout_s is None
