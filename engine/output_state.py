"""One output on its way to the client: its text, where it stops, its log-probabilities and its times."""

from __future__ import annotations

from draftline.engine.detokenizer import Detokenizer
from draftline.engine.launched import RowResult
from draftline.engine.outputs import (
    Delta,
    Finished,
    FinishReason,
    PositionLogprobs,
    SpeculationStats,
    Timing,
    Update,
    Usage,
)
from draftline.engine.sequence import Sequence
from draftline.models.tokenizer import Tokenizer


class OutputState:
    """Decides how much of each step's tokens an output keeps, and what its client is told."""

    def __init__(self, sequence: Sequence, tokenizer: Tokenizer, eos_ids: frozenset[int], submitted_at: float) -> None:
        """``submitted_at`` is on the same monotonic clock, in seconds, as the ``now`` of the methods."""
        self.sequence = sequence
        self._tokenizer = tokenizer
        sampling = sequence.sampling
        self._eos_ids = frozenset[int]() if sampling.ignore_eos else eos_ids
        self._stop_ids = frozenset(sampling.stop_token_ids)
        self._detokenizer = Detokenizer(sampling.stop)
        self._prompt_logprobs: list[PositionLogprobs] = []
        self._submitted_at = submitted_at
        self._scheduled_at: float | None = None
        self._first_token_at: float | None = None
        self._steps = self._drafted = self._accepted = 0
        self._accepted_by_position: list[int] = []

    def scheduled(self, now: float) -> None:
        """Note the time at which the output first ran."""
        if self._scheduled_at is None:
            self._scheduled_at = now

    def advance(self, start: int, result: RowResult, now: float) -> tuple[list[int], list[Update]]:
        """Take one step's result for this output.

        Args:
            start: the sequence's computed tokens before the step.
            result: what the step decided.
            now: the time.

        Returns:
            The tokens that the output keeps (fewer than were accepted if it ends among them), and its updates.
        """
        self._take_prompt_logprobs(start, result.prompt_logprobs)
        if not result.tokens:
            return [], []
        if self._first_token_at is None:
            self._first_token_at = now
        kept, text, reason, matched = self._until_stop(result.tokens)
        self._count_drafts(result.drafted, len(kept))
        delta = Delta(
            self.sequence.index, tuple(kept), text, tuple(result.logprobs[: len(kept)]), tuple(self._prompt_logprobs)
        )
        self._prompt_logprobs = []
        updates: list[Update] = [delta]
        if reason is not None:
            by_token = kept[-1] in self._stop_ids
            updates.append(self._finished(reason, matched, len(kept), now, stopped_by_token=by_token))
        return kept, updates

    def cancel(self, now: float) -> list[Update]:
        """The updates that end a cancelled output: what text is left, and the finish."""
        text = self._detokenizer.flush()
        updates: list[Update] = [Delta(self.sequence.index, (), text)] if text else []
        updates.append(self._finished(FinishReason.CANCELLED, "", 0, now))
        return updates

    def _until_stop(self, tokens: list[int]) -> tuple[list[int], str, FinishReason | None, str]:
        """The tokens up to the one that ends the output, their text, why it ends (or None), and the matched stop."""
        sequence = self.sequence
        kept: list[int] = []
        text = ""
        for token in tokens:
            kept.append(token)
            length = sequence.output_len + len(kept)
            if token in self._eos_ids:
                return kept, text + self._detokenizer.flush(), FinishReason.EOS, ""
            if token in self._stop_ids:
                return kept, text + self._detokenizer.flush(), FinishReason.STOP, str(token)
            data = self._tokenizer.token_bytes(token)
            if length <= sequence.sampling.min_tokens:
                text += self._detokenizer.push_unchecked(data)
            else:
                shown, stop = self._detokenizer.push(data)
                text += shown
                if stop is not None:
                    return kept, text, FinishReason.STOP, stop
            if sequence.prompt_len + length >= sequence.max_len:
                return kept, text + self._detokenizer.flush(), FinishReason.LENGTH, ""
        return kept, text, None, ""

    def _take_prompt_logprobs(self, start: int, logprobs: list[PositionLogprobs]) -> None:
        """Keep the new ones; a prompt recomputed after preemption brings some again."""
        self._prompt_logprobs.extend(logprobs[max(0, len(self._prompt_logprobs) - start) :])

    def _count_drafts(self, drafted: int, kept: int) -> None:
        self._steps += 1
        self._drafted += drafted
        accepted = min(drafted, kept - 1)
        self._accepted += accepted
        if len(self._accepted_by_position) < drafted:
            self._accepted_by_position.extend([0] * (drafted - len(self._accepted_by_position)))
        for position in range(accepted):
            self._accepted_by_position[position] += 1

    def _finished(
        self, reason: FinishReason, matched: str, new_tokens: int, now: float, *, stopped_by_token: bool = False
    ) -> Finished:
        sequence = self.sequence
        scheduled = self._scheduled_at if self._scheduled_at is not None else now
        first = self._first_token_at if self._first_token_at is not None else now
        return Finished(
            index=sequence.index,
            finish_reason=reason,
            matched_stop=matched,
            usage=Usage(sequence.prompt_len, sequence.cached_prompt, sequence.output_len + new_tokens),
            speculation=SpeculationStats(self._drafted, self._accepted, self._steps, tuple(self._accepted_by_position)),
            timing=Timing(
                queued_s=scheduled - self._submitted_at,
                prefill_s=first - scheduled,
                first_token_s=first - self._submitted_at,
                total_s=now - self._submitted_at,
            ),
            constraint_complete=None,
            seed=sequence.seed,
            stopped_by_token=stopped_by_token and reason is FinishReason.STOP,
        )
