"""Requests of every kind, and what it means that two outputs are the same."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from tiny import Client, alone

from draftline.engine.outputs import RequestOutput
from draftline.engine.params import SamplingParams

KINDS = 10
"""Of sampling, in `samplings`: this many requests have one of each."""

SAMPLING_KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.3, "top_k": 20, "min_p": 0.05},
    {"temperature": 0.0, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    {"temperature": 0.9, "repetition_penalty": 1.1, "logit_bias": {5: 3.0, 7: -100.0}, "min_tokens": 5},
    {"temperature": 0.8, "logprobs": 3},
    {"temperature": 0.0, "logprobs": 0, "prompt_logprobs": 2},
)
"""Sampling parameters, alone and together, but for those that forbid tokens or end outputs."""

GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


def prompts(count: int, seed: int = 0, longest: int = 40) -> list[list[int]]:
    """Random prompts, some of which begin alike."""
    draw = random.Random(seed)
    shared = [draw.randrange(1, 256) for _ in range(longest)]
    made = []
    for i in range(count):
        own = [draw.randrange(1, 256) for _ in range(draw.randint(1, longest))]
        made.append([*shared[: draw.choice((0, 8, 16, 27))], *own] if i % 2 else own)
    return made


def samplings(count: int, seed: int = 0) -> list[SamplingParams]:
    """Every kind of sampling, each with its own seed and length."""
    draw = random.Random(seed)
    kinds = [
        *SAMPLING_KINDS,
        {"temperature": 0.9, "bad_words": ("e", "\x05\x06", "ab", "aba")},
        {"temperature": 1.0, "allowed_token_ids": (97, 98), "bad_words": ("aa", "bab")},
    ]
    assert len(kinds) == KINDS
    return [
        SamplingParams(
            **kinds[i % len(kinds)],
            seed=draw.randrange(2**64),
            max_tokens=draw.randint(5 if "min_tokens" in kinds[i % len(kinds)] else 1, 20),
        )  # type: ignore[arg-type]
        for i in range(count)
    ]


def assert_same(output: RequestOutput, expected: RequestOutput) -> None:
    """Everything that a client sees, but for times and cache hits."""
    for got, want in zip(output.outputs, expected.outputs, strict=True):
        assert got.token_ids == want.token_ids
        assert got.text == want.text
        assert (got.finish_reason, got.stop_reason) == (want.finish_reason, want.stop_reason)
        assert_same_logprobs(got.logprobs, want.logprobs)
    assert_same_logprobs(output.prompt_logprobs, expected.prompt_logprobs)


def assert_same_logprobs(got: Sequence[object] | None, want: Sequence[object] | None) -> None:
    assert (got is None) == (want is None)
    for one, other in zip(got or (), want or (), strict=True):
        assert one.chosen.token_id == other.chosen.token_id  # type: ignore[attr-defined]
        assert one.chosen.logprob == pytest.approx(other.chosen.logprob, abs=1e-4)  # type: ignore[attr-defined]
        assert [t.token_id for t in one.top] == [t.token_id for t in other.top]  # type: ignore[attr-defined]


def run_all(client: Client, count: int, seed: int) -> dict[str, RequestOutput]:
    for i, (prompt, sampling) in enumerate(zip(prompts(count, seed), samplings(count, seed), strict=True)):
        client.submit(str(i), prompt, sampling)
    return client.run()


def solo_runs(count: int, seed: int) -> list[RequestOutput]:
    """What the requests of `run_all` give by themselves."""
    return [alone(p, s) for p, s in zip(prompts(count, seed), samplings(count, seed), strict=True)]
