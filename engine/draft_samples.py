"""What a target answers to prompts that nobody collected: the samples that its draft model is trained on.

Prompts come from three places: templates (`spec.train_draft.prompts`), the target itself, which writes what a user would
say when it is given an empty user's turn (Xu et al. 2024, https://arxiv.org/abs/2406.08464), and its own earlier answers,
which later prompts ask about. Half of all answers are greedy, half are drawn at a temperature. Answers that end in a loop
are dropped.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np

from draftline.engine.llm import LLM
from draftline.engine.outputs import RequestOutput
from draftline.engine.params import SamplingParams
from draftline.models.tokenizer import Tokenizer
from draftline.spec.train_draft.prompts import Prompts
from draftline.spec.train_draft.samples import Kind, Sample, Split, ends_in_loop

Messages = tuple[tuple[str, str], ...]
"""A conversation: roles and contents."""

_ROUND = 8192
_TOKENS_AN_ANSWER = 100
"""What the last round's size is guessed by; fewer than usual would only take a round more."""

_QUESTION_TOKENS = 96
_SHORTEST_QUESTION = 4


@dataclass(frozen=True, slots=True)
class SamplePlan:
    """How many samples, and how they are drawn.

    Attributes:
        tokens: tokens of answers to train on, at least.
        answer_tokens: most tokens of an answer.
        held_out: prompts of each kind to choose a checkpoint by, and as many again to report on.
        temperature: of the half of the answers that is not greedy.
        seed: of prompts and answers.
    """

    tokens: int
    answer_tokens: int = 256
    held_out: int = 256
    temperature: float = 0.8
    seed: int = 0


def write_samples(llm: LLM, plan: SamplePlan, report: Callable[[str], None]) -> list[Sample]:
    """Let the target answer until there is enough.

    Args:
        llm: the target.
        plan: how much.
        report: takes a line on what has been written, after each round.

    Returns:
        The samples: held-out ones first.
    """
    writer = _Writer(llm, plan)
    samples = writer.held_out()
    report(f"{len(samples)} held-out answers, {writer.dropped} more dropped as loops")
    written = 0
    while written < plan.tokens:
        count = min(_ROUND, max(32, (plan.tokens - written) // _TOKENS_AN_ANSWER))
        new = writer.round(count)
        samples += new
        written += sum(sample.answer_len for sample in new)
        report(f"{written} of {plan.tokens} tokens in {len(samples)} answers, {writer.dropped} dropped as loops")
    return samples


@dataclass(frozen=True, slots=True)
class _Prompt:
    messages: Messages
    tokens: list[int]
    kind: Kind


@dataclass(slots=True)
class _Writer:
    """The rounds of one `write_samples`."""

    llm: LLM
    plan: SamplePlan
    dropped: int = 0
    _earlier: list[tuple[Messages, str]] = field(default_factory=list)
    """Conversations of the last round with their answers, for prompts about them."""

    _asked: set[Messages] = field(default_factory=set)
    _seeds: Iterator[int] = field(init=False)
    _random: random.Random = field(init=False)
    _training: Prompts = field(init=False)

    def __post_init__(self) -> None:
        draw = self._random = random.Random(self.plan.seed)
        self._seeds = iter(lambda: draw.getrandbits(48), -1)
        self._training = Prompts(self.plan.seed, held_out=False)

    def held_out(self) -> list[Sample]:
        """Greedy answers to prompts that training will not see."""
        prompts = Prompts(self.plan.seed + 1, held_out=True)
        count = 2 * self.plan.held_out
        own = [((("user", text),), Kind.GENERAL) for text in self._questions(count // 2)]
        made = [((("user", prompts.general()),), Kind.GENERAL) for _ in range(count - len(own))]
        json = [((("user", prompts.json()),), Kind.JSON) for _ in range(count)]
        answered = self._answers([*own, *made, *json], [0.0])
        return [
            _sample(prompt, output, Split.REPORT if index % 2 else Split.CHOOSE)
            for index, (prompt, output) in enumerate(answered)
        ]

    def round(self, count: int) -> list[Sample]:
        """Answers to about ``count`` training prompts."""
        questions = self._questions(count // 6)
        conversations = [self._conversation(index, questions) for index in range(count)]
        answered = self._answers(conversations, [0.0, self.plan.temperature])
        self._earlier = [(prompt.messages, output.outputs[0].text) for prompt, output in answered] or self._earlier
        return [_sample(prompt, output, Split.TRAIN) for prompt, output in answered]

    def _conversation(self, index: int, questions: Sequence[str]) -> tuple[Messages, Kind]:
        prompts = self._training
        earlier = self._random.choice(self._earlier) if self._earlier else None
        if index < len(questions):
            return (("user", questions[index]),), Kind.GENERAL
        if index % 2:
            if earlier and prompts.chance(0.25):
                return (("user", prompts.json_about_text(earlier[1])),), Kind.JSON
            return (("user", prompts.json()),), Kind.JSON
        if earlier and prompts.chance(0.5):
            if prompts.chance(0.5) and len(earlier[0]) == 1:
                return (*earlier[0], ("assistant", earlier[1]), ("user", prompts.follow_up())), Kind.GENERAL
            return (("user", prompts.about_text(earlier[1])),), Kind.GENERAL
        return (("user", prompts.general()),), Kind.GENERAL

    def _questions(self, count: int) -> list[str]:
        """What the target thinks that users say; nothing where its chat template does not lead up to that."""
        beginning = _before_the_user(self.llm.tokenizer)
        if not beginning or not count:
            return []
        params = [
            SamplingParams(temperature=1.0, top_p=0.95, max_tokens=_QUESTION_TOKENS, seed=next(self._seeds))
            for _ in range(count)
        ]
        outputs = self.llm.generate([beginning] * count, params, use_tqdm=False)
        texts = [o.outputs[0] for o in outputs]
        whole = (t for t in texts if t.finish_reason == "eos" and len(t.token_ids) > _SHORTEST_QUESTION)
        return sorted({text for t in whole if (text := t.text.strip())})

    def _answers(
        self, conversations: Sequence[tuple[Messages, Kind]], temperatures: Sequence[float]
    ) -> list[tuple[_Prompt, RequestOutput]]:
        prompts = list(self._encoded(conversations))
        self._random.shuffle(prompts)
        params = [
            SamplingParams(
                temperature=temperatures[index % len(temperatures)],
                max_tokens=self.plan.answer_tokens,
                seed=next(self._seeds),
            )
            for index in range(len(prompts))
        ]
        outputs = self.llm.generate([prompt.tokens for prompt in prompts], params, use_tqdm=False)
        good = []
        for prompt, output in zip(prompts, outputs, strict=True):
            if ends_in_loop(np.array(output.outputs[0].token_ids, np.int32)):
                self.dropped += 1
            elif output.outputs[0].token_ids:
                good.append((prompt, output))
        return good

    def _encoded(self, conversations: Sequence[tuple[Messages, Kind]]) -> Iterator[_Prompt]:
        """Those that were not asked before and leave room for an answer."""
        longest = self.llm.info.max_model_len - self.plan.answer_tokens
        for messages, kind in conversations:
            if messages in self._asked:
                continue
            self._asked.add(messages)
            tokens = _encode(messages, self.llm.tokenizer)
            if 0 < len(tokens) <= longest:
                yield _Prompt(messages, tokens, kind)


def _sample(prompt: _Prompt, output: RequestOutput, split: Split) -> Sample:
    tokens = np.array([*prompt.tokens, *output.outputs[0].token_ids], np.int32)
    return Sample(tokens, len(prompt.tokens), prompt.kind, split)


def _encode(messages: Messages, tokenizer: Tokenizer) -> list[int]:
    if tokenizer.has_chat_template:
        return tokenizer.encode_chat(messages)
    return tokenizer.encode("".join(f"{content}\n\n" for _, content in messages))


def _before_the_user(tokenizer: Tokenizer) -> list[int]:
    """The ids up to where a user's first message begins: what conversations that begin differently have in common."""
    if not tokenizer.has_chat_template:
        return []
    one, other = (tokenizer.encode_chat((("user", text),)) for text in ("What", "7"))
    return [a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))]
