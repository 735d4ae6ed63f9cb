"""Training samples for a draft model: the target's own answers to generated prompts.

Prompts come from three sources: templates (`draftline.spec.train_draft.prompts`); the target itself, which writes a
user's message when it is given an empty user's turn (Xu et al. 2024, https://arxiv.org/abs/2406.08464), also behind the
system message of a task; and its earlier answers, one or several of which later prompts ask about. Half of the answers
are greedy, half are drawn at a temperature. Answers that end in a loop are dropped.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from draftline.engine.llm import LLM
from draftline.engine.outputs import RequestOutput
from draftline.engine.params import SamplingParams
from draftline.models.tokenization.tokenizer import Tokenizer
from draftline.spec.train_draft.prompts import Prompts
from draftline.spec.train_draft.samples import Kind, Sample, Split, ends_in_loop

Messages = tuple[tuple[str, str], ...]
"""A conversation: roles and contents."""

_ROUND = 8192
"""Max answers of one round."""

_TOKENS_PER_ANSWER = 100
"""Estimate for the size of the last round. If answers are shorter, another round follows."""

_MAX_TEXTS = 6
"""Max earlier answers that one prompt asks about."""

_QUESTION_TOKENS = 192
_SHORTEST_QUESTION = 4
_JSON_EVERY = 3
"""Of the prompts that the target does not write itself, one in this many asks for JSON."""

_OWN_QUESTIONS = 1 / 2
"""The share of the prompts that the target is asked to write itself. Not all that it writes are whole."""

_TEMPERATURES = (0.0, 0.8, 0.0, 1.0)
"""Those of answers, in turn."""

_WITH_TASK = 0.6
"""The share of the target's own questions that are behind a task's system message."""


@dataclass(frozen=True, slots=True)
class SamplePlan:
    """How many samples, and how they are drawn.

    Attributes:
        tokens: min tokens of the answers to train on.
        answer_tokens: max tokens of an answer.
        held_out: prompts of each kind to choose a checkpoint by, and as many again to report on.
        seed: the seed of prompts and answers.
    """

    tokens: int
    answer_tokens: int
    held_out: int
    seed: int = 0


def write_samples(
    llm: LLM, plan: SamplePlan, report: Callable[[str], None], earlier: Sequence[Sample] = ()
) -> Iterator[list[Sample]]:
    """Let the target answer prompts in rounds, until the plan is met.

    Args:
        llm: the target.
        plan: the number of samples.
        report: receives a line of progress after each round.
        earlier: samples of an earlier run with the same target. They count, and their prompts are not asked again.

    Yields:
        The new samples of each round; the held-out ones come first.
    """
    writer = _Writer(llm, plan, earlier)
    written = trained_tokens(earlier)
    if all(sample.split is Split.TRAIN for sample in earlier):
        samples = writer.held_out()
        report(f"{len(samples)} held-out answers; {writer.dropped} that end in loops dropped")
        yield samples
    while written < plan.tokens:
        count = min(_ROUND, max(32, (plan.tokens - written) // _TOKENS_PER_ANSWER))
        samples = writer.round(count)
        written += trained_tokens(samples)
        report(f"{written} of {plan.tokens} tokens written; {writer.dropped} answers that end in loops dropped")
        yield samples


def trained_tokens(samples: Iterable[Sample]) -> int:
    """Count the tokens of the answers that are trained on."""
    return sum(sample.answer_len for sample in samples if sample.split is Split.TRAIN)


@dataclass(frozen=True, slots=True)
class _Prompt:
    messages: Messages
    tokens: list[int]
    kind: Kind


class _Writer:
    """The rounds of one `write_samples`.

    Attributes:
        dropped: number of answers that ended in loops.
    """

    def __init__(self, llm: LLM, plan: SamplePlan, earlier: Sequence[Sample]) -> None:
        self._llm, self._plan = llm, plan
        seed = plan.seed << 32 | len(earlier)
        self._random = random.Random(seed)
        self._training, self._measuring = Prompts(seed, held_out=False), Prompts(seed, held_out=True)
        self._asked = {sample.tokens[: sample.prompt_len].tobytes() for sample in earlier}
        # The last round's conversations and answers, for prompts about them.
        self._last_round: list[tuple[Messages, str]] = []
        self.dropped = 0

    def held_out(self) -> list[Sample]:
        """Write greedy answers to prompts that training does not see."""
        prompts, count = self._measuring, 2 * self._plan.held_out
        own = [(question, Kind.GENERAL) for question in self._questions(prompts, count // 2)]
        made = [((("user", prompts.general()),), Kind.GENERAL) for _ in range(count - len(own))]
        json = [((("user", prompts.json()),), Kind.JSON) for _ in range(count)]
        answered = self._answers([*own, *made, *json], [0.0])
        return [
            _sample(prompt, output, Split.REPORT if index % 2 else Split.CHOOSE)
            for index, (prompt, output) in enumerate(answered)
        ]

    def round(self, count: int) -> list[Sample]:
        """Write answers to about ``count`` training prompts."""
        questions = self._questions(self._training, int(count * _OWN_QUESTIONS))
        conversations = [self._conversation(index, questions) for index in range(count)]
        answered = self._answers(conversations, _TEMPERATURES)
        self._last_round = [
            (prompt.messages, output.outputs[0].text) for prompt, output in answered
        ] or self._last_round
        return [_sample(prompt, output, Split.TRAIN) for prompt, output in answered]

    def _conversation(self, index: int, questions: Sequence[Messages]) -> tuple[Messages, Kind]:
        prompts = self._training
        earlier = self._random.choice(self._last_round) if self._last_round else None
        if index < len(questions):
            return questions[index], Kind.GENERAL
        if index % _JSON_EVERY == 0:
            if earlier and prompts.chance(0.25):
                return (("user", prompts.json_about_text(earlier[1])),), Kind.JSON
            return (("user", prompts.json()),), Kind.JSON
        if earlier and prompts.chance(0.5):
            if prompts.chance(0.5) and len(earlier[0]) == 1:
                return (*earlier[0], ("assistant", earlier[1]), ("user", prompts.follow_up())), Kind.GENERAL
            if prompts.chance(0.6):
                # Long prompts, as of summaries and of questions to a search's results.
                several = self._random.choices(self._last_round, k=self._random.randint(2, _MAX_TEXTS))
                return (("user", prompts.about_texts([answer for _, answer in several])),), Kind.GENERAL
            return (("user", prompts.about_text(earlier[1])),), Kind.GENERAL
        return (("user", prompts.general()),), Kind.GENERAL

    def _questions(self, prompts: Prompts, count: int) -> list[Messages]:
        """Let the target write users' messages. Without a chat template that opens a user's turn there are none."""
        before: list[Messages] = [
            (("system", prompts.task()),) if prompts.chance(_WITH_TASK) else () for _ in range(count)
        ]
        prefix_of = {messages: _user_turn_prefix(messages, self._llm.tokenizer) for messages in {(), *before}}
        if not prefix_of[()]:
            return []
        # Some templates know no system messages.
        asked = [messages if prefix_of[messages] else () for messages in before]
        params = [
            SamplingParams(temperature=1.0, top_p=0.95, max_tokens=_QUESTION_TOKENS, seed=self._random.getrandbits(48))
            for _ in asked
        ]
        outputs = self._llm.generate([prefix_of[messages] for messages in asked], params, use_tqdm=False)
        texts = ((messages, output.outputs[0]) for messages, output in zip(asked, outputs, strict=True))
        whole = ((m, t) for m, t in texts if t.finish_reason == "eos" and len(t.token_ids) > _SHORTEST_QUESTION)
        return sorted({(*messages, ("user", text)) for messages, t in whole if (text := t.text.strip())})

    def _answers(
        self, conversations: Sequence[tuple[Messages, Kind]], temperatures: Sequence[float]
    ) -> list[tuple[_Prompt, RequestOutput]]:
        prompts = list(self._encoded(conversations))
        self._random.shuffle(prompts)
        params = [
            SamplingParams(
                temperature=temperatures[index % len(temperatures)],
                max_tokens=self._plan.answer_tokens,
                seed=self._random.getrandbits(48),
            )
            for index in range(len(prompts))
        ]
        outputs = self._llm.generate([prompt.tokens for prompt in prompts], params, use_tqdm=False)
        good = []
        for prompt, output in zip(prompts, outputs, strict=True):
            if ends_in_loop(np.array(output.outputs[0].token_ids, np.int32)):
                self.dropped += 1
            elif output.outputs[0].token_ids:
                good.append((prompt, output))
        return good

    def _encoded(self, conversations: Sequence[tuple[Messages, Kind]]) -> Iterator[_Prompt]:
        """Encode the conversations that are new, leave room for an answer, and name no special token in a text."""
        longest = self._llm.info.max_model_len - self._plan.answer_tokens
        for messages, kind in conversations:
            try:
                tokens = _encode(messages, self._llm.tokenizer)
            except ValueError:
                continue
            key = np.array(tokens, np.int32).tobytes()
            if key not in self._asked and 0 < len(tokens) <= longest:
                self._asked.add(key)
                yield _Prompt(messages, tokens, kind)


def _sample(prompt: _Prompt, output: RequestOutput, split: Split) -> Sample:
    tokens = np.array([*prompt.tokens, *output.outputs[0].token_ids], np.int32)
    return Sample(tokens, len(prompt.tokens), prompt.kind, split)


def _encode(messages: Messages, tokenizer: Tokenizer) -> list[int]:
    if tokenizer.has_chat_template:
        return tokenizer.encode_chat(messages)
    return tokenizer.encode("".join(f"{content}\n\n" for _, content in messages))


def _user_turn_prefix(before: Messages, tokenizer: Tokenizer) -> list[int]:
    """The token ids before a user's message: the common prefix of two conversations with different messages.

    Empty without a chat template, or if it has no place for the messages ``before``.
    """
    if not tokenizer.has_chat_template:
        return []
    try:
        one, other = (tokenizer.encode_chat((*before, ("user", text))) for text in ("What", "7"))
    except ValueError:
        return []
    return [a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))]
