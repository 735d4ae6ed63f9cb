"""What a draft is worth: its acceptance on text that the target wrote greedily, as a server would count it.

A server drafts K tokens, verifies them, keeps those that the target agrees with and one more, and drafts again from
there. While drafts are accepted, the text is the target's own, so what a draft model would propose at each place follows
from one pass over that text: no drafting is needed to count exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from draftline.kernels.reference.ngram import continuation
from draftline.spec.train_draft.decoder import Draft, Target
from draftline.spec.train_draft.packing import pack
from draftline.spec.train_draft.samples import Sample

_BATCH = 32
"""Samples measured at once."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """How drafts fared over many verifies.

    Attributes:
        verifies: target passes.
        tokens: what they decided.
        accepted: of each draft position, how many verifies accepted it.
    """

    verifies: int
    tokens: int
    accepted: tuple[int, ...]

    @property
    def length(self) -> float:
        """The acceptance length: tokens a verify decides, its bonus token included. 1 is plain decoding."""
        return self.tokens / max(1, self.verifies)

    @property
    def rates(self) -> tuple[float, ...]:
        """Of each draft position, the share of verifies that accepted it."""
        return tuple(count / max(1, self.verifies) for count in self.accepted)


def served(answers: Iterable[tuple[int, Callable[[int], int]]], draft_tokens: int) -> Acceptance:
    """Count as a server: after each verify, draft again behind what it decided.

    Args:
        answers: of each answer, its number of tokens, and how many drafts are right if it is drafted from an index on.
            The first token needs no verify: the prompt's own pass decides it.
        draft_tokens: K, the drafts of a verify.
    """
    verifies = tokens = 0
    accepted = [0] * draft_tokens
    for count, right_from in answers:
        at = 1
        while at < count:
            right = min(right_from(at), draft_tokens, count - at)
            decided = min(right + 1, count - at)
            for position in range(right):
                accepted[position] += 1
            verifies += 1
            tokens += decided
            at += decided
    return Acceptance(verifies, tokens, tuple(accepted))


def draft_acceptance(draft: Draft, target: Target, samples: Sequence[Sample], draft_tokens: int) -> Acceptance:
    """A draft model's acceptance on samples whose answers the target wrote greedily."""
    runs = (_runs(agrees) for agrees in _agreement(draft, target, samples))
    return served(((len(run), run.__getitem__) for run in runs), draft_tokens)


def ngram_acceptance(samples: Sequence[Sample], draft_tokens: int, longest: int) -> Acceptance:
    """The acceptance of n-gram lookup in each sequence's own tokens; ``longest`` is `continuation`'s."""
    return served(((s.answer_len, _ngram_right(s, draft_tokens, longest)) for s in samples), draft_tokens)


def _ngram_right(sample: Sample, draft_tokens: int, longest: int) -> Callable[[int], int]:
    tokens = sample.tokens.tolist()

    def right_from(index: int) -> int:
        at = sample.prompt_len + index
        drafts = continuation(tokens[:at], draft_tokens, longest)
        right = 0
        while right < min(draft_tokens, len(tokens) - at) and drafts[right] == tokens[at + right]:
            right += 1
        return right

    return right_from


@torch.no_grad()
def _agreement(draft: Draft, target: Target, samples: Sequence[Sample]) -> Iterable[list[bool]]:
    """Of each answer's tokens, whether the draft's greedy token is the target's, given the target's text before it."""
    device, dtype = target.head.device, target.head.dtype
    for first in range(0, len(samples), _BATCH):
        some = samples[first : first + _BATCH]
        packed = pack(some, device)
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            hidden = draft.hidden(packed).to(dtype)
        guesses = torch.cat([F.linear(part, target.head).argmax(-1) for part in hidden.split(2048)])
        agrees = (guesses == packed.answers).tolist()
        start = 0
        for sample in some:
            yield agrees[start : start + sample.answer_len]
            start += sample.answer_len


def _runs(agrees: Sequence[bool]) -> list[int]:
    """From each index on, how many agree without a break."""
    runs = [0] * len(agrees)
    run = 0
    for index in range(len(agrees) - 1, -1, -1):
        run = run + 1 if agrees[index] else 0
        runs[index] = run
    return runs
