"""One output on its way to the client: its text, where it stops, its log-probabilities and its times."""

from __future__ import annotations

import json
import logging
from typing import NamedTuple

from draftline.engine.outputs import (
    Delta,
    Finished,
    FinishReason,
    SpeculationStats,
    Timing,
    Update,
    Usage,
)
from draftline.engine.request.request import Request
from draftline.engine.request.sequence import Row, Sequence
from draftline.engine.runner.launched_step import Logprobs, RowResult
from draftline.engine.stats import DraftTally, StepTimes
from draftline.engine.streaming.detokenizer import Detokenizer
from draftline.models.tokenization.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


class _End(NamedTuple):
    """Why an output ends; see `Finished`."""

    reason: FinishReason
    matched_stop: str = ""
    stopped_by_token: bool = False

    @property
    def cuts_text(self) -> bool:
        """Whether the last token is not, or not all, part of the text."""
        return self.reason is FinishReason.STOP


def is_json(text: str) -> bool:
    """Whether a text is one JSON document (RFC 8259, which has no NaN and no infinities)."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    try:
        json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError):
        return False
    return True


class OutputState:
    """Decides how much of each step's tokens an output keeps, and what its client is told.

    Attributes:
        request: what it is an output of.
        sequence: which of the request's sequences it is.
    """

    def __init__(
        self,
        request: Request,
        sequence: Sequence,
        tokenizer: Tokenizer,
        eos_ids: frozenset[int],
        *,
        drafter: str = "none",
        synthetic: bool = False,
    ) -> None:
        """The request's ``submitted_at`` is on the same clock as the ``now`` of the methods.

        Args:
            request: what it is an output of.
            sequence: which of the request's sequences it is.
            tokenizer: turns tokens into text.
            eos_ids: the model's end-of-sequence ids.
            drafter: who drafts for it.
            synthetic: that drafts are accepted by chance.
        """
        self.request = request
        self.sequence = sequence
        self._tokenizer = tokenizer
        sampling = sequence.sampling
        self._eos_ids = frozenset[int]() if sampling.ignore_eos else eos_ids
        self._stop_ids = frozenset(sampling.stop_token_ids)
        self._detokenizer = Detokenizer(tuple(sampling.stop))
        # Stop strings are looked for in the tokens beyond this length.
        self._unchecked_len = sequence.prompt_len + sampling.min_tokens if sampling.stop else sequence.max_len
        self._prompt_logprobs: Logprobs = ()
        self._scheduled_at: float | None = None
        self._first_token_at: float | None = None
        self._steps = 0
        # The text so far, where it is to be JSON.
        constraint = sequence.constraint
        self._json = "" if constraint is not None and constraint.is_json else None
        self._drafts = DraftTally(drafter)
        self._synthetic = synthetic

    def scheduled(self, now: float) -> None:
        """Note the time, if it is the first at which the output runs."""
        if self._scheduled_at is None:
            self._scheduled_at = now

    def advance(
        self, row: Row, result: RowResult, now: float, times: StepTimes | None = None
    ) -> tuple[tuple[int, ...], tuple[Update, ...]]:
        """Take one step's result for this output.

        Args:
            row: the sequence's part in the step.
            result: what the step decided.
            now: the time.
            times: how long the step took, where it drafted.

        Returns:
            The tokens that the output keeps (fewer than were accepted if it ends among them), and its updates.
        """
        tokens, logprobs, prompt_logprobs = result
        if prompt_logprobs:
            self._take_prompt_logprobs(row.start, prompt_logprobs)
        if not tokens:
            return (), ()
        if self._first_token_at is None:
            self._first_token_at = now
        kept, text, end = self._until_end(tokens)
        complete = self._constrain(kept, end)
        self._steps += 1
        if row.drafts:
            self._drafts.count(row.drafts, min(row.drafts, len(kept) - 1))
            if times is not None:
                self._drafts.took(times)
        if self._json is not None:
            self._json += text
        delta = Delta(self.sequence.index, kept, text, logprobs[: len(kept)], self._prompt_logprobs)
        self._prompt_logprobs = ()
        return kept, (delta,) if end is None else (delta, self._finished(end, len(kept), now, complete))

    def cancel(self, now: float) -> tuple[Update, ...]:
        """The updates that end a cancelled output: what text is left, and the finish."""
        text = self._detokenizer.flush()
        if self._json is not None:
            self._json += text
        end = _End(FinishReason.CANCELLED)
        finished = self._finished(end, 0, now, self._constrain((), end))
        return (Delta(self.sequence.index, (), text), finished) if text else (finished,)

    def _until_end(self, tokens: tuple[int, ...]) -> tuple[tuple[int, ...], str, _End | None]:
        """The tokens up to the one that ends the output, their text, and why it ends (or None)."""
        detokenizer = self._detokenizer
        before = length = len(self.sequence.tokens)
        text = ""
        for token in tokens:
            length += 1
            if token in self._eos_ids:
                end = _End(FinishReason.EOS)
            elif token in self._stop_ids:
                end = _End(FinishReason.STOP, str(token), stopped_by_token=True)
            else:
                data = self._tokenizer.token_bytes(token)
                if length <= self._unchecked_len:
                    text += detokenizer.push_unchecked(data)
                else:
                    shown, stop = detokenizer.push(data)
                    text += shown
                    if stop is not None:
                        return tokens[: length - before], text, _End(FinishReason.STOP, stop)
                if length < self.sequence.max_len:
                    continue
                end = _End(FinishReason.LENGTH)
            return tokens[: length - before], text + detokenizer.flush(), end
        return tokens, text, None

    def _take_prompt_logprobs(self, start: int, logprobs: Logprobs) -> None:
        """Keep the new ones; a prompt recomputed after preemption brings some again."""
        self._prompt_logprobs += logprobs[max(0, len(self._prompt_logprobs) - start) :]

    def _speculation(self) -> SpeculationStats:
        drafts = self._drafts.stats()
        return SpeculationStats(
            drafted=drafts.drafted,
            accepted=drafts.accepted,
            steps=self._steps,
            accepted_by_position=drafts.accepted_by_position,
            drafter=drafts.name if drafts.drafted else "",
            times=drafts.times,
            synthetic=self._synthetic,
        )

    def _constrain(self, kept: tuple[int, ...], end: _End | None) -> bool | None:
        """Take the kept tokens to the constraint; whether the text is complete with them, None without a constraint."""
        constraint = self.sequence.constraint
        if constraint is None:
            return None
        matcher = constraint.progress.matcher
        if end is not None and end.cuts_text:
            kept = kept[:-1]
        for token in kept:
            if not matcher.advance(token):
                if token not in self._eos_ids:  # that ends what a grammar cannot go on with
                    logger.error("%s: token %d is not what its constraint allows", self.sequence.name, token)
                return False
        return matcher.complete and not (end is not None and end.cuts_text and not end.stopped_by_token)

    def _finished(self, end: _End, new_tokens: int, now: float, complete: bool | None) -> Finished:
        sequence, submitted = self.sequence, self.request.submitted_at
        scheduled = self._scheduled_at if self._scheduled_at is not None else now
        first = self._first_token_at if self._first_token_at is not None else now
        return Finished(
            index=sequence.index,
            finish_reason=end.reason,
            matched_stop=end.matched_stop,
            usage=Usage(sequence.prompt_len, sequence.cached_prompt, sequence.output_len + new_tokens),
            speculation=self._speculation(),
            timing=Timing(
                queued_s=scheduled - submitted,
                prefill_s=first - scheduled,
                first_token_s=first - submitted,
                total_s=now - submitted,
            ),
            constraint_complete=complete,
            json_valid=None if self._json is None else is_json(self._json),
            seed=sequence.seed,
            stopped_by_token=end.stopped_by_token,
        )
