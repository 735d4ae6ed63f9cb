"""The acceptance of drafts on text that the target wrote greedily, counted as a server would.

A server drafts K tokens, verifies them, keeps those that the target agrees with and one more, and drafts again from
there. Accepted drafts are the target's own text. So one forward pass over that text gives the draft model's proposals
at every position, and the count is exact without any drafting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from draftline.kernels.reference.ngram import continuation
from draftline.spec.train_draft.decoder import Draft, FrozenTarget, autocast_to
from draftline.spec.train_draft.packing import pack
from draftline.spec.train_draft.samples import Sample

_BATCH = 32
"""Samples measured at once."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Counts of accepted drafts over many verify steps.

    Attributes:
        verifies: verify steps, each one forward pass of the target.
        tokens: tokens that they decided.
        accepted: by draft position, the number of verify steps that accepted it.
    """

    verifies: int
    tokens: int
    accepted: tuple[int, ...]

    @property
    def length(self) -> float:
        """The acceptance length: the mean number of tokens that a verify step decides. 1 is plain decoding."""
        return self.tokens / max(1, self.verifies)

    @property
    def rates(self) -> tuple[float, ...]:
        """By draft position, the share of verify steps that accepted it."""
        return tuple(count / max(1, self.verifies) for count in self.accepted)


def served(answers: Iterable[tuple[int, Callable[[int], int]]], draft_tokens: int) -> Acceptance:
    """Count as a server would: after each verify step, draft again behind the tokens that it decided.

    Args:
        answers: for each answer its number of tokens, and a function from an index to the number of drafts from there
            on that are right. The first token needs no verify step: the prefill decides it.
        draft_tokens: K, the drafts of a verify step.
    """
    verifies = tokens = 0
    accepted = [0] * draft_tokens
    for count, right_from in answers:
        index = 1
        while index < count:
            right = min(right_from(index), draft_tokens, count - index)
            decided = min(right + 1, count - index)
            for position in range(right):
                accepted[position] += 1
            verifies += 1
            tokens += decided
            index += decided
    return Acceptance(verifies, tokens, tuple(accepted))


def draft_acceptance(draft: Draft, target: FrozenTarget, samples: Sequence[Sample], draft_tokens: int) -> Acceptance:
    """The acceptance of a draft model on samples whose answers the target wrote greedily."""
    runs = (_runs(agrees) for agrees in _agreement(draft, target, samples))
    return served(((len(run), run.__getitem__) for run in runs), draft_tokens)


def ngram_acceptance(samples: Sequence[Sample], draft_tokens: int, max_ngram: int) -> Acceptance:
    """The acceptance of n-gram lookup in each sequence's own tokens; ``max_ngram`` is the longest n-gram."""
    return served(((s.answer_len, _ngram_right(s, draft_tokens, max_ngram)) for s in samples), draft_tokens)


def _ngram_right(sample: Sample, draft_tokens: int, max_ngram: int) -> Callable[[int], int]:
    tokens = sample.tokens.tolist()

    def right_from(index: int) -> int:
        position = sample.prompt_len + index
        drafts = continuation(tokens[:position], draft_tokens, max_ngram)
        right = 0
        while right < min(draft_tokens, len(tokens) - position) and drafts[right] == tokens[position + right]:
            right += 1
        return right

    return right_from


@torch.no_grad()
def _agreement(draft: Draft, target: FrozenTarget, samples: Sequence[Sample]) -> Iterable[list[bool]]:
    """For each answer token, whether the draft model's greedy token equals it, given the target's text before it."""
    for first in range(0, len(samples), _BATCH):
        batch = samples[first : first + _BATCH]
        packed = pack(batch, target.head.device)
        with autocast_to(target.head):
            hidden = draft.hidden(packed).to(target.head.dtype)
        guesses = torch.cat([F.linear(part, target.head).argmax(-1) for part in hidden.split(2048)])
        agrees = (guesses == packed.answers).tolist()
        start = 0
        for sample in batch:
            yield agrees[start : start + sample.answer_len]
            start += sample.answer_len


def _runs(agrees: Sequence[bool]) -> list[int]:
    """For each index, the number of consecutive agreements from there on."""
    runs = [0] * len(agrees)
    run = 0
    for index in range(len(agrees) - 1, -1, -1):
        run = run + 1 if agrees[index] else 0
        runs[index] = run
    return runs
