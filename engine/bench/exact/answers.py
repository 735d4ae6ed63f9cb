"""Answers with their log-probabilities: how an engine is asked for them, and where two of them differ."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest

from draftline.engine.bench.closed_loop import closed_loop
from draftline.engine.config import EngineConfig
from draftline.engine.outputs import Delta, Finished
from draftline.engine.protocol import EngineInfo, GenerateRequest
from draftline.engine.stats import EngineStats
from draftline.engine.threaded_engine import ThreadedEngine, start_engine

Answer = tuple[tuple[int, float], ...]
"""An answer's tokens, each with its log-probability."""

Count = Callable[[EngineStats], int]
"""Reads one number of an engine's statistics."""


@dataclass(frozen=True, slots=True)
class SuiteAnswers:
    """An engine's answers to the requests of one suite.

    Attributes:
        answers: in the order of the requests.
        seconds: wall time of all answers.
        count: how much the column's count has risen meanwhile.
        prompt_lens: tokens of each prompt.
    """

    answers: tuple[Answer, ...]
    seconds: float
    count: int
    prompt_lens: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """The number of generated tokens."""
        return sum(map(len, self.answers))


@dataclass(frozen=True, slots=True)
class EngineAnswers:
    """All that one engine answered: the requests of each suite."""

    info: EngineInfo
    suites: tuple[SuiteAnswers, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference between two lists of answers.

    Attributes:
        question: its index.
        position: the index of the first token that differs, or whose log-probability does.
        got: that token and its log-probability; None where the answer had ended.
        expected: the same of the reference.
    """

    question: int
    position: int
    got: tuple[int, float] | None
    expected: tuple[int, float] | None


def ask(engine: ThreadedEngine, requests: Sequence[GenerateRequest], concurrency: int, count: Count) -> SuiteAnswers:
    """Answer all requests, ``concurrency`` of them at a time.

    Raises:
        RuntimeError: a request failed.
    """
    answers: list[list[tuple[int, float]]] = [[] for _ in requests]
    before, start = count(engine.stats()), time.perf_counter()
    prompt_lens = [0 for _ in requests]
    for index, update in closed_loop(engine, requests, concurrency):
        match update:
            case Delta():
                answers[index] += [(entry.chosen.token_id, entry.chosen.logprob) for entry in update.logprobs]
            case Finished():
                prompt_lens[index] = update.usage.prompt_tokens
    seconds = time.perf_counter() - start
    return SuiteAnswers(tuple(map(tuple, answers)), seconds, count(engine.stats()) - before, tuple(prompt_lens))


def answer(
    config: EngineConfig, suites: Sequence[Sequence[GenerateRequest]], concurrencies: Sequence[int], count: Count
) -> EngineAnswers:
    """Start an engine, and ask it for each suite, once at each concurrency. The last answers are the result."""
    with start_engine(config) as engine:
        answers = [[ask(engine, requests, each, count) for each in concurrencies][-1] for requests in suites]
        return EngineAnswers(engine.info, tuple(answers))


def answer_in_fresh_process(
    config: EngineConfig, suites: Sequence[Sequence[GenerateRequest]], concurrencies: Sequence[int], count: Count
) -> EngineAnswers:
    """`answer` in a new process, which gets ``count`` pickled."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(answer, config, suites, concurrencies, count).result()


def first_difference(got: Sequence[Answer], expected: Sequence[Answer]) -> Difference | None:
    """The first question, and the first position in it, where the answers are not equal bit for bit."""
    for question, (one, other) in enumerate(zip(got, expected, strict=True)):
        for position, (a, b) in enumerate(zip_longest(one, other)):
            if a != b:
                return Difference(question, position, a, b)
    return None


def equal_answers(got: Sequence[Answer], expected: Sequence[Answer]) -> tuple[int, int]:
    """How many answers are equal bit for bit, and how many have at least equal tokens."""
    pairs = list(zip(got, expected, strict=True))
    same_tokens = [[token for token, _ in one] == [token for token, _ in other] for one, other in pairs]
    return sum(one == other for one, other in pairs), sum(same_tokens)
