"""What every column asks: questions or random prompts, greedily, with a seed, and with a constraint."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from draftline.engine.bench.documents import PERSON
from draftline.engine.bench.questions import OWN, read_questions
from draftline.engine.chat.messages import Chat
from draftline.engine.params import Constraint, SamplingParams
from draftline.engine.protocol import GenerateRequest, Prompt

_SEED = 0
_RANDOM_LENGTHS = (5, 40, 70, 130, 260, 520, 1030)
"""Random prompts are up to so long, in turn."""

_RECORD = Constraint(json_schema=json.dumps(PERSON), whitespace="spaced")


def questions(path: Path | None, limit: int | None) -> list[Prompt]:
    """The prompts of a file, as `read_questions` reads them, as chats; or texts of this benchmark's own.

    Raises:
        DatasetError: the file cannot be read, or an entry is wrong.
    """
    return [Chat((("user", text),)) for text in read_questions(path, limit)]


def random_prompts(count: int | None, vocab_size: int) -> list[Prompt]:
    """Random tokens in prompts of many lengths, some of which begin alike. The same in every call."""
    draw = random.Random(_SEED)
    common = draw.choices(range(vocab_size), k=max(_RANDOM_LENGTHS))
    prompts: list[Prompt] = []
    for index in range(count or OWN):
        own = draw.choices(range(vocab_size), k=draw.randint(1, _RANDOM_LENGTHS[index % len(_RANDOM_LENGTHS)]))
        prompts.append((*common[: draw.choice((0, 0, 32, 150, 300))], *own))
    return prompts


def _greedy(prompt: Prompt, index: int, max_tokens: int) -> GenerateRequest:
    return GenerateRequest(prompt, SamplingParams(temperature=0, max_tokens=max_tokens, logprobs=0))


def _seeded(prompt: Prompt, index: int, max_tokens: int) -> GenerateRequest:
    return GenerateRequest(prompt, SamplingParams(temperature=1, seed=index, max_tokens=max_tokens, logprobs=0))


def _constrained(prompt: Prompt, index: int, max_tokens: int) -> GenerateRequest:
    return GenerateRequest(prompt, _greedy(prompt, index, max_tokens).sampling, _RECORD)


SUITES: dict[str, Callable[[Prompt, int, int], GenerateRequest]] = {
    "greedy": _greedy,
    "seeded": _seeded,
    "constrained": _constrained,
}
"""By name: makes a request of a prompt, its index, and the most tokens of its answer."""


def suite(name: str, prompts: Sequence[Prompt], max_tokens: int) -> list[GenerateRequest]:
    """The requests of a suite, each of which returns its tokens' log-probabilities."""
    return [SUITES[name](prompt, index, max_tokens) for index, prompt in enumerate(prompts)]
