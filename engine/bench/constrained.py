"""The cost of a constraint: the same prompts and output lengths with it and without, in rounds that alternate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from draftline.engine.bench.noise import paired_ratio
from draftline.engine.bench.rounds import results_of_rounds
from draftline.engine.chat.messages import Chat
from draftline.engine.errors import DraftlineError
from draftline.engine.llm import LLM
from draftline.engine.outputs import RequestOutput
from draftline.engine.params import Constraint, SamplingParams

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class TimedRound:
    """A batch's tokens and seconds."""

    tokens: int
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens/s."""
        return self.tokens / self.seconds


ConstrainedRound = tuple[TimedRound, TimedRound, Sequence[RequestOutput[Any]]]
"""A round without the constraint and one with it, whose outputs these are."""


def measure(
    llm: LLM,
    texts: Sequence[str],
    constraint: Constraint[Any],
    sampling: SamplingParams,
    rounds: int,
    clock: Clock,
    progress: Callable[[], object],
) -> Iterator[dict[str, Any]]:
    """Measure a constraint.

    The first, constrained round warms up, and says how long each answer is. An unconstrained answer gets the same
    length, so that both sides generate as many tokens for each prompt.

    Args:
        llm: the engine.
        texts: the users' messages.
        constraint: on every answer.
        sampling: of the constrained answers.
        rounds: how often each side runs.
        clock: reads seconds.
        progress: called after each side of a round, warm-up included.

    Yields:
        The fields of two results: unconstrained, and constrained; see `results_of_rounds`.
    """
    chats = [Chat((("user", text),)) for text in texts]
    first = llm.generate(chats, sampling, constraint=constraint, use_tqdm=False)
    lengths = [len(output.outputs[0].token_ids) for output in first]
    free = [sampling.model_copy(update={"max_tokens": length, "ignore_eos": True}) for length in lengths]
    progress()
    llm.generate(chats, free, use_tqdm=False)
    progress()

    def rounds_in_turns() -> Iterator[ConstrainedRound]:
        for _ in range(rounds):
            started = clock()
            llm.generate(chats, free, use_tqdm=False)
            freely = TimedRound(sum(lengths), clock() - started)
            progress()
            started = clock()
            outputs = llm.generate(chats, sampling, constraint=constraint, use_tqdm=False)
            tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
            constrained = TimedRound(tokens, clock() - started)
            progress()
            yield freely, constrained, outputs

    about = {"rows": len(texts), "tokens": sum(lengths)}
    yield from results_of_rounds(rounds_in_turns(), lambda taken: _compare(taken, about))


def _compare(taken: Sequence[ConstrainedRound], about: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The fields of both results. Whether outputs are complete and valid is that of the last round."""
    free, constrained, answered = zip(*taken, strict=True)
    outputs = answered[-1]
    share = paired_ratio([one.tokens_per_s for one in constrained], [one.tokens_per_s for one in free])
    about = {**about, "rounds": len(free)}
    return [
        {"constraint": "none", **about, "tokens_per_s": median(one.tokens_per_s for one in free)},
        {
            "constraint": "own",
            **about,
            "tokens_per_s": median(one.tokens_per_s for one in constrained),
            "of_unconstrained": share.median,
            "of_unconstrained_low": share.low,
            "of_unconstrained_high": share.high,
            "verdict": {"higher": "faster", "lower": "slower"}.get(share.verdict, share.verdict),
            "complete_share": sum(_is_complete(output) for output in outputs) / len(outputs),
            "valid_share": sum(_is_valid(output) for output in outputs) / len(outputs),
        },
    ]


def _is_complete(output: RequestOutput[Any]) -> bool:
    finished = output.outputs[0].finished
    return finished is not None and bool(finished.constraint_complete)


def _is_valid(output: RequestOutput[Any]) -> bool:
    """Whether the answer can be read as what the constraint promises: a truncated one cannot."""
    try:
        return output.parsed is not None or _is_complete(output)
    except DraftlineError:
        return False
