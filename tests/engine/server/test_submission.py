"""A request waits for its constraint and its tokens in time, before the engine gets it, and for both only once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from byte_compilers import byte_compiler
from endless_work import EndlessWork
from fake_engine import FakeEngine

from draftline.engine.chat.calls import Tool
from draftline.engine.chat.messages import Chat
from draftline.engine.errors import DeadlineExceededError, InvalidRequestError
from draftline.engine.params import Constraint, SamplingParams
from draftline.engine.protocol import GenerateRequest, Prompt
from draftline.engine.server.submission import prepared
from draftline.engine.server.tokenizer_pool import LONG, TokenizerPool
from draftline.structured.compiler import ConstraintCompiler


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


@pytest.mark.parametrize("prompt", ["a", Chat((("user", "a"),), tools=(Tool("add", "Adds.", '{"type": "object"}'),))])
async def test_the_engine_compiles_nothing_again(engine: FakeEngine, prompt: Prompt) -> None:
    engine.info = replace(engine.info, tool_format="hermes")
    compiler = ConstraintCompiler(byte_compiler().vocabulary)
    engine.compile_with(compiler)
    tokenizers = TokenizerPool(engine.tokenizer, engine.info)
    constraint = Constraint(regex="a") if isinstance(prompt, str) else None
    ready = await prepared(engine, tokenizers, GenerateRequest(prompt, constraint=constraint))
    compiler.close()  # the next compilation would fail, as would one that finds the constraint in the cache
    assert engine.submit("a", ready, lambda updates: None).prompt_token_ids


async def test_a_prompt_that_is_cut_is_planned_by_its_last_tokens(engine: FakeEngine) -> None:
    engine.info = replace(engine.info, reasoning=("assistant:", "</think>"))
    tokenizers = TokenizerPool(engine.tokenizer, engine.info)
    for keep, is_open in ((None, True), (4, False)):
        request = GenerateRequest(Chat((("user", "a"),)), SamplingParams(truncate_prompt_tokens=keep))
        planned = (await prepared(engine, tokenizers, request)).planned
        assert planned is not None
        assert planned.plan.reading is not None
        assert planned.plan.reading.is_open == is_open


async def test_a_constraint_is_refused_where_drafts_are_accepted_by_chance(engine: FakeEngine) -> None:
    engine.info = replace(engine.info, synthetic_acceptance=0.5)
    tokenizers = TokenizerPool(engine.tokenizer, engine.info)
    with pytest.raises(InvalidRequestError, match=r"constraint.regex: cannot be enforced"):
        await prepared(engine, tokenizers, GenerateRequest("a", constraint=Constraint(regex="a")))
