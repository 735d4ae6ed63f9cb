"""What the speculation benchmark asks: Spec-Bench's questions, extraction to JSON, or random tokens."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

from draftline.engine.params import SamplingParams
from draftline.engine.protocol import Chat, GenerateRequest
from draftline.spec.train_draft.prompts import Prompts

_SEED = 0


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt of a dataset."""

    category: str
    text: str


def read_spec_bench(path: Path, limit: int | None) -> list[Question]:
    """The first turn of each question; of more than ``limit``, as many, spread evenly over the file.

    Raises:
        ValueError: a line is not a question. The message names it.
    """
    questions: list[Question] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            fields = json.loads(line)
            questions.append(Question(fields["category"], fields["turns"][0]))
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise ValueError(f"{path}:{number}: not a question of Spec-Bench: {error!r}") from error
    if limit is None or limit >= len(questions):
        return questions
    return [questions[i * len(questions) // limit] for i in range(limit)]


def extraction(count: int) -> list[Question]:
    """Texts to be turned into JSON records: the same ones each time, and none that a draft model was trained on."""
    prompts = Prompts(_SEED, held_out=True)
    return [Question("extraction", prompts.json()) for _ in range(count)]


def chats(questions: list[Question], max_tokens: int) -> list[GenerateRequest]:
    """The questions as greedy requests."""
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens)
    return [GenerateRequest(Chat((("user", question.text),)), sampling) for question in questions]


def random_tokens(concurrency: int, vocab_size: int) -> list[GenerateRequest]:
    """As many requests as run at once, of fixed lengths: the shapes bs1 to bs256 of the throughput benchmark.

    Their seeds are fixed, for synthetic acceptance draws by them.
    """
    draw = random.Random(_SEED)
    prompt_len, output_len = 128 if concurrency <= 8 else 512, 512 if concurrency == 1 else 256

    def request(seed: int) -> GenerateRequest:
        sampling = SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True, seed=seed)
        return GenerateRequest(tuple(draw.choices(range(vocab_size), k=prompt_len)), sampling)

    return [request(seed) for seed in range(concurrency)]
