"""A request on its way to the engine process: validated once, and complete when it arrives."""

from __future__ import annotations

import pickle
from dataclasses import asdict

import pytest
from byte_compilers import byte_compiler
from fake_engine import ByteTokenizer, fake_info

from draftline.engine.chat.messages import Chat
from draftline.engine.params import Constraint, SamplingParams
from draftline.engine.process.messages import Submit
from draftline.engine.protocol import GenerateRequest, Prompt
from draftline.engine.request.request import Request, RequestBuilder

INFO = fake_info()


class NoTokenizer:
    """The engine process needs no tokenizer to take a request."""


def sink(updates: object) -> None: ...


def builder() -> RequestBuilder:
    return RequestBuilder(INFO, ByteTokenizer(), 5.0, byte_compiler())  # type: ignore[arg-type]


def arrived(request: GenerateRequest, now: float) -> Request:
    """The request as the engine process makes it of the server's message."""
    message = pickle.loads(pickle.dumps(Submit(builder().prepare("a", request).request)))
    engine = RequestBuilder(INFO, NoTokenizer(), 0.0, byte_compiler())  # type: ignore[arg-type]
    return engine.attach(message.request, sink, now)


@pytest.mark.parametrize("prompt", ["text", Chat((("user", "hello"),)), (5, 6, 7)], ids=["text", "chat", "ids"])
def test_a_request_that_travelled_is_the_one_that_was_built_in_place(prompt: Prompt) -> None:
    sampling = SamplingParams(n=3, seed=-1, max_tokens=9, stop=("x",), prompt_logprobs=2, logit_bias={3: 1.0})
    request = GenerateRequest(prompt, sampling, priority=2, timeout_s=7.0)
    travelled, in_place = arrived(request, 100.0), builder().build("a", request, sink, 100.0)
    assert travelled.prompt_token_ids == in_place.prompt_token_ids
    assert (travelled.submitted_at, travelled.deadline) == (100.0, 107.0)
    assert list(map(asdict, travelled.sequences)) == list(map(asdict, in_place.sequences))
    assert (travelled.head_start_s, in_place.head_start_s) == (10.0, 10.0)


def test_a_random_seed_is_drawn_before_the_request_travels() -> None:
    prepared = builder().prepare("a", GenerateRequest("text")).request
    seeds = {builder().attach(prepared, sink, now).sequences[0].seed for now in (0.0, 1.0)}
    assert seeds == {prepared.seed}


def test_a_constraint_is_compiled_where_the_request_arrives() -> None:
    constraint = Constraint(regex="[a-c]{3}", close_within_budget=True)
    [sequence] = arrived(GenerateRequest("text", SamplingParams(max_tokens=9), constraint), 0.0).sequences
    assert sequence.constraint is not None
    assert sequence.constraint.closes_at == len("text") + 9
