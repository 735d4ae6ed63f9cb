"""One engine's answers to requests at a concurrency, with what its drafter did meanwhile."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from draftline.engine.bench.closed_loop import closed_loop
from draftline.engine.chat.messages import Chat
from draftline.engine.outputs import Delta
from draftline.engine.protocol import EngineClient, GenerateRequest
from draftline.engine.request.tokenization import tokenize
from draftline.engine.stats import DrafterStats, EngineStats


@dataclass(frozen=True, slots=True)
class Answers:
    """One engine's answers to all requests.

    Attributes:
        tokens: the token ids of each answer, in the order of the requests.
        seconds: wall time of all answers.
        cpu_seconds: of all threads of this process, in that time; not those of an engine in another one.
        drafts: the statistics of the drafter during that time.
    """

    tokens: tuple[tuple[int, ...], ...]
    seconds: float
    drafts: DrafterStats
    cpu_seconds: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens/s."""
        return sum(map(len, self.tokens)) / self.seconds


def ask(engine: EngineClient, requests: Sequence[GenerateRequest], concurrency: int) -> Answers:
    """Answer all requests, ``concurrency`` of them at a time.

    Prompts are tokenized before the clock starts. In this process that would hold up the engine, and a server does it
    in another one.

    Raises:
        RuntimeError: a request failed.
    """
    requests = [_tokenized(engine, request) for request in requests]
    before = engine.stats()
    answers: list[list[int]] = [[] for _ in requests]
    start, cpu = time.perf_counter(), time.process_time()
    for index, update in closed_loop(engine, requests, concurrency):
        if isinstance(update, Delta):
            answers[index] += update.token_ids
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    after = _stats_with(engine, before.generated_tokens + sum(map(len, answers)))
    return Answers(tuple(map(tuple, answers)), seconds, since(after.drafter, before.drafter), cpu)


def _stats_with(engine: EngineClient, generated_tokens: int) -> EngineStats:
    """The statistics, once they have these tokens: an engine in another process sends them later than its updates."""
    while (stats := engine.stats()).generated_tokens < generated_tokens and not engine.stopped.done():
        time.sleep(0.01)
    return stats


def _tokenized(engine: EngineClient, request: GenerateRequest) -> GenerateRequest:
    prompt = request.prompt
    if not isinstance(prompt, str | Chat):
        return request
    return replace(request, prompt_token_ids=tokenize(prompt, engine.tokenizer, engine.info))


def since(now: DrafterStats, before: DrafterStats) -> DrafterStats:
    """The statistics of a drafter between two moments."""

    def difference(later: tuple[int, ...], earlier: tuple[int, ...]) -> tuple[int, ...]:
        padded = (*earlier, *[0] * (len(later) - len(earlier)))
        return tuple(a - b for a, b in zip(later, padded, strict=True))

    later, earlier = asdict(now.times), asdict(before.times)
    return DrafterStats(
        name=now.name,
        steps=now.steps - before.steps,
        drafted_by_position=difference(now.drafted_by_position, before.drafted_by_position),
        accepted_by_position=difference(now.accepted_by_position, before.accepted_by_position),
        times=type(now.times)(**{name: later[name] - earlier[name] for name in later}),
    )
