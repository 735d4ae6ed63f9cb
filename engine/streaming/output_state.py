"""The state of a running output: its text, its end, its log-probabilities and its times."""

from __future__ import annotations

import logging
from typing import NamedTuple

from draftline.engine.errors import ConstraintLimitError
from draftline.engine.outputs import (
    Delta,
    Finished,
    FinishReason,
    SpeculationStats,
    Timing,
    Update,
    Usage,
)
from draftline.engine.protocol import EngineInfo
from draftline.engine.request.request import Request
from draftline.engine.request.sequence import Row, Sequence
from draftline.engine.runner.launched_step import Logprobs
from draftline.engine.scheduling.draft_tally import DraftTally
from draftline.engine.stats import StepTimes, WorkMeter
from draftline.engine.streaming.detokenizer import Detokenizer
from draftline.models.tokenization.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


class _End(NamedTuple):
    """The reason why an output ends, as in `Finished`."""

    reason: FinishReason
    matched_stop: str = ""
    stopped_by_token: bool = False

    @property
    def cuts_text(self) -> bool:
        """Whether the output's text leaves out the last token, or a part of it."""
        return self.reason is FinishReason.STOP


class OutputState:
    """Turns each step's result into the tokens that an output keeps, and then into its client's updates.

    The next step needs the tokens at once. The updates have time until it is launched.

    Attributes:
        request: the request.
        sequence: the output's sequence.
    """

    def __init__(
        self,
        request: Request,
        sequence: Sequence,
        tokenizer: Tokenizer,
        info: EngineInfo,
        meter: WorkMeter,
    ) -> None:
        """Create the state of an output without tokens.

        Args:
            request: the request. Its ``submitted_at`` is on the same clock as the methods' ``now``.
            sequence: the output's sequence, one of the request's.
            tokenizer: turns tokens into text.
            info: the model and its drafter.
            meter: adds up the work of the engine's steps.
        """
        self.request = request
        self.sequence = sequence
        sampling = sequence.sampling
        self._info = info
        self._eos_ids = frozenset(() if sampling.ignore_eos else info.eos_token_ids)
        self._stop_ids = frozenset(sampling.stop_token_ids)
        self._ends = self._eos_ids | self._stop_ids
        self._detokenizer = Detokenizer(tuple(sampling.stop))
        # Of the tokens that were kept last: their text, where an end was looked for in it, and the end.
        self._text: str | None = None
        self._end: _End | None = None
        self._follows = True  # whether its constraint allows all tokens so far
        # Up to this length, stop strings are not looked for.
        self._unchecked_len = sequence.prompt_len + sampling.min_tokens if sampling.stop else sequence.max_len
        self._prompt_logprobs: Logprobs = ()
        self._scheduled_at: float | None = None
        self._meter = meter
        self._before = self._meter.counts  # when it was scheduled
        self._first_token_at: float | None = None
        self._steps = 0
        marking = {} if sequence.constraint is None else sequence.constraint.marking
        bytes_of = tokenizer.token_bytes
        self._bytes_of = (lambda token: marking.get(token) or bytes_of(token)) if marking else bytes_of
        self._drafts = DraftTally(info.drafter)

    def mark_scheduled(self, now: float) -> None:
        """Note the time of the output's first step. Later calls, after preemptions, do nothing."""
        if self._scheduled_at is None:
            self._scheduled_at = now
            self._before = self._meter.counts

    @property
    def has_ended(self) -> bool:
        """Whether a token that it kept was its last one."""
        return self._end is not None

    def keep(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """The tokens that the output keeps of those that a step has accepted: all up to its end.

        Raises:
            ConstraintLimitError: the constraint cannot follow the text within its limits.
            Exception: the constraint's fault, or another error that ends this output only.
        """
        if not tokens:
            return ()  # a chunk of the prompt
        constraint = self.sequence.constraint
        if constraint is not None and constraint.fault is not None:
            raise constraint.fault
        # The output may end before the last accepted token. Its constraint follows the kept tokens.
        kept, self._text, self._end = self._until_end(tokens)
        if constraint is not None:
            self._follows = self._advance_constraint(kept, self._end)
        return kept

    def updates(
        self,
        row: Row,
        kept: tuple[int, ...],
        logprobs: Logprobs,
        prompt_logprobs: Logprobs,
        now: float,
        times: StepTimes | None = None,
    ) -> tuple[Update, ...]:
        """The client's updates of one step.

        Args:
            row: the sequence's row in the step.
            kept: what `keep` has returned.
            logprobs: those of the accepted tokens, where asked for; see `StepResults` for these two.
            prompt_logprobs: those of prompt positions, where asked for.
            now: the time in seconds at which the step was read.
            times: the step's times, if it had drafts.
        """
        if prompt_logprobs:
            self._take_prompt_logprobs(row.start, prompt_logprobs)
        if not kept:
            return ()
        if self._first_token_at is None:
            self._first_token_at = now
        text, self._text = self._text, None
        if text is None:
            bytes_of = self._bytes_of
            text = self._detokenizer.push_unchecked(
                bytes_of(kept[0]) if len(kept) == 1 else b"".join(map(bytes_of, kept))
            )

        # Drafts after the end count as rejected.
        self._steps += 1
        if row.drafts:
            self._drafts.count(row.drafts, min(row.drafts, len(kept) - 1))
            if times is not None:
                self._drafts.add_times(times)

        delta = Delta(self.sequence.index, kept, text, logprobs[: len(kept)], self._prompt_logprobs)
        self._prompt_logprobs = ()
        return (delta,) if self._end is None else (delta, self._finished(self._end, now))

    def cancel(self, now: float) -> tuple[Update, ...]:
        """Return the updates that end a cancelled output: the rest of its text, and the end."""
        text = self._detokenizer.flush()
        end = _End(FinishReason.CANCELLED)
        finished = self._finished(end, now)
        return (Delta(self.sequence.index, (), text), finished) if text else (finished,)

    def _until_end(self, tokens: tuple[int, ...]) -> tuple[tuple[int, ...], str | None, _End | None]:
        """Find the end of the output among the new tokens.

        Returns:
            The tokens up to the end; the text that is certain with them, or None if it tells nothing about the end; and
            the end, or None if the output goes on.
        """
        before = length = len(self.sequence.tokens)
        # The common case: no token can end it.
        if length + len(tokens) < self._unchecked_len and self._ends.isdisjoint(tokens):
            return tokens, None, None
        detokenizer, bytes_of = self._detokenizer, self._bytes_of
        text = ""
        for token in tokens:
            length += 1
            if token in self._eos_ids:
                end = _End(FinishReason.EOS)
            elif token in self._stop_ids:
                end = _End(FinishReason.STOP, str(token), stopped_by_token=True)
            else:
                # Stop strings count only after the first ``min_tokens``.
                data = bytes_of(token)
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
        """Keep the new ones. A prompt that is recomputed after a preemption returns some again."""
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
            synthetic=self._info.synthetic_acceptance is not None,
        )

    def _advance_constraint(self, kept: tuple[int, ...], end: _End | None) -> bool:
        """Advance the constraint by the kept tokens.

        Returns:
            Whether it allows them.

        Raises:
            ConstraintLimitError: the constraint cannot follow the text within its limits.
        """
        constraint = self.sequence.constraint
        assert constraint is not None, "only outputs with a constraint advance it"
        matcher = constraint.progress.matcher
        if end is not None and end.cuts_text:
            kept = kept[:-1]
        for token in kept:
            if not matcher.advance(token):
                if matcher.failure is not None:
                    # The mask allowed only end-of-sequence, which is not the output's end.
                    raise ConstraintLimitError(f"the constraint cannot follow this output: {matcher.failure}")
                if token not in self._eos_ids:  # the only token where a grammar cannot go on
                    logger.error("%s: its constraint does not allow token %d", self.sequence.name, token)
                return False
        return True

    def _complete(self, end: _End) -> bool | None:
        """Whether the text is complete for its constraint; None without one."""
        constraint = self.sequence.constraint
        if constraint is None or constraint.fault is not None:
            return None
        cut = end.cuts_text and not end.stopped_by_token
        return self._follows and not cut and constraint.progress.matcher.complete

    def _finished(self, end: _End, now: float) -> Finished:
        sequence, submitted, compile_s = self.sequence, self.request.submitted_at, self.request.constraint_compile_s
        scheduled = self._scheduled_at if self._scheduled_at is not None else now
        first = self._first_token_at if self._first_token_at is not None else now
        return Finished(
            index=sequence.index,
            finish_reason=end.reason,
            matched_stop=end.matched_stop,
            usage=Usage(sequence.prompt_len, sequence.cached_prompt, sequence.output_len),
            speculation=self._speculation(),
            timing=Timing(
                queued_s=max(0.0, scheduled - submitted - compile_s),
                prefill_s=first - scheduled,
                first_token_s=first - submitted,
                total_s=now - submitted,
                constraint_compile_s=compile_s,
            ),
            constraint_complete=self._complete(end),
            seed=sequence.seed,
            stopped_by_token=end.stopped_by_token,
            system_fingerprint=self._info.system_fingerprint,
            unenforced=() if sequence.constraint is None else sequence.constraint.unenforced,
            utilization=self._meter.since(self._before if self._scheduled_at is not None else self._meter.counts),
        )
