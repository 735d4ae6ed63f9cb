"""The prompts of comparisons: questions of Spec-Bench, extraction to JSON, or random tokens."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from draftline.engine.bench.json_lines import json_lines, read_text
from draftline.engine.chat.messages import Chat
from draftline.engine.params import SamplingParams
from draftline.engine.protocol import GenerateRequest
from draftline.spec.train_draft.prompts import Prompts

_SEED = 0

Entry = TypeVar("Entry")


@dataclass(frozen=True, slots=True)
class SpecBenchQuestion:
    """One prompt of a dataset."""

    category: str
    text: str


def read_spec_bench(path: Path, limit: int | None) -> list[SpecBenchQuestion]:
    """The first turns of the questions; at most ``limit`` of them, spread evenly over the file.

    Raises:
        ValueError: the file cannot be read, or a line is not a question. The message names it.
    """
    questions: list[SpecBenchQuestion] = []
    for where, fields in json_lines(path, read_text(path)):
        try:
            questions.append(SpecBenchQuestion(fields["category"], fields["turns"][0]))
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"{where}: not a question of Spec-Bench: {error!r}") from error
    if not questions:
        raise ValueError(f"{path}: has no question")
    return evenly(questions, limit)


def evenly(found: list[Entry], limit: int | None) -> list[Entry]:
    """At most ``limit`` entries, spread evenly over all."""
    if limit is None or limit >= len(found):
        return found
    return [found[index * len(found) // limit] for index in range(limit)]


def extraction(count: int) -> list[SpecBenchQuestion]:
    """Texts to be converted to JSON records, the same in every call. No draft model was trained on them."""
    prompts = Prompts(_SEED, held_out=True)
    return [SpecBenchQuestion("extraction", prompts.json()) for _ in range(count)]


def chats(questions: list[SpecBenchQuestion], max_tokens: int, temperature: float = 0.0) -> list[GenerateRequest]:
    """The questions as requests, each with a seed of its own."""

    def request(seed: int, question: SpecBenchQuestion) -> GenerateRequest:
        sampling = SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=seed)
        return GenerateRequest(Chat((("user", question.text),)), sampling)

    return [request(seed, question) for seed, question in enumerate(questions)]


def random_tokens(concurrency: int, vocab_size: int) -> list[GenerateRequest]:
    """``concurrency`` requests of fixed lengths: those of the workloads ``bs1`` to ``bs256``.

    Their seeds are fixed, since synthetic acceptance depends on them.
    """
    draw = random.Random(_SEED)
    prompt_len, output_len = 128 if concurrency <= 8 else 512, 512 if concurrency == 1 else 256

    def request(seed: int) -> GenerateRequest:
        sampling = SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True, seed=seed)
        return GenerateRequest(tuple(draw.choices(range(vocab_size), k=prompt_len)), sampling)

    return [request(seed) for seed in range(concurrency)]
