"""``LaunchedStep``: a step on its way through the device, and its results once they have arrived on the host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import NamedTuple

import numpy as np
from torch import Tensor

from draftline.engine.outputs import PositionLogprobs, TokenLogprob
from draftline.engine.request.sequence import Row
from draftline.engine.runner.executor import ForwardResult, SampleResult
from draftline.engine.runner.timing import END, step_times
from draftline.engine.runner.transfer import Arrival, EventPool, to_host, upload
from draftline.engine.stats import StepTimes
from draftline.kernels.ops import Ops

Logprobs = tuple[PositionLogprobs, ...]


class StepResults(NamedTuple):
    """The results of a step, each a list with an entry for every row of the plan. An object a row would cost host time.

    Attributes:
        tokens: the accepted tokens; none where the row did not reach its last known token.
        logprobs: theirs, where asked for.
        prompt_logprobs: those of the prompt's positions ``start + 1`` to ``start + count``, where asked for.
    """

    tokens: list[tuple[int, ...]]
    logprobs: list[Logprobs]
    prompt_logprobs: list[Logprobs]


@dataclass(frozen=True, slots=True)
class LogprobTensors:
    """The log-probabilities of L positions on the host; see ``Ops.logprobs``."""

    tokens: Tensor
    chosen: Tensor
    ranks: Tensor
    top_ids: Tensor
    top_values: Tensor

    def read(self) -> Iterator[PositionLogprobs]:
        """Yield the log-probabilities of each position.

        All have as many of the most likely tokens as the row that wants most.
        """
        values = (self.tokens, self.chosen, self.ranks, self.top_ids, self.top_values)
        for token, logprob, rank, ids, tops in zip(*(value.tolist() for value in values), strict=True):
            top = tuple(
                TokenLogprob(token_id, value, place)
                for place, (token_id, value) in enumerate(zip(ids, tops, strict=True), 1)
            )
            yield PositionLogprobs(TokenLogprob(token, logprob, rank), top)


@dataclass(slots=True)
class LaunchedStep:
    """A step that the device computes, or has computed.

    Read-only once it is launched, but not frozen: freezing costs host time.

    Attributes:
        rows: the plan's.
        tokens: [S] int64, sampled at each sampled position in row order.
        accepted: [R] integers, how many of its tokens each row keeps.
        logits: the positions that got logits.
        logprobs: of the sampled positions of the rows that asked for them, if any did.
        prompt_logprobs: of prompt positions, likewise.
        arrival: tells when all these are there.
        moments: of the step's parts, where it drafted, or of its end alone, where the device tells; see `StepClock`.
        capture_s: seconds that its launch took to capture graphs, which no later step of its shape takes.
    """

    rows: tuple[Row, ...]
    tokens: Tensor
    accepted: Tensor
    logits: int
    logprobs: LogprobTensors | None
    prompt_logprobs: LogprobTensors | None
    arrival: Arrival
    moments: Tensor | None = None
    capture_s: float = 0.0

    def wait(self) -> None:
        """Wait until the step has arrived."""
        self.arrival.wait()

    def times(self, host_s: float) -> StepTimes | None:
        """How long the parts of a step that has arrived took, with ``host_s``; None if it has no drafts."""
        return None if self.moments is None or len(self.moments) <= END else step_times(self.moments, host_s)

    def ended(self) -> int | None:
        """When a step that has arrived ended, in nanoseconds of the device's clock; None if it does not tell."""
        return None if self.moments is None else int(self.moments[-1])

    def results(self) -> StepResults:
        """The results of a step that has arrived."""
        tokens = self.accepted_tokens()
        nothing: list[Logprobs] = [()] * len(tokens)
        logprobs = prompt_logprobs = nothing
        if self.logprobs is not None:
            read = self.logprobs.read()
            logprobs = [_take(read, row.samples, row.sequence.sampling.logprobs) for row in self.rows]
            logprobs = [of_row[: len(kept)] for of_row, kept in zip(logprobs, tokens, strict=True)]
        if self.prompt_logprobs is not None:
            read = self.prompt_logprobs.read()
            prompt_logprobs = [
                _take(read, row.known_predictions, row.sequence.sampling.prompt_logprobs) for row in self.rows
            ]
        return StepResults(tokens, logprobs, prompt_logprobs)

    def accepted_tokens(self) -> list[tuple[int, ...]]:
        """The tokens that each row keeps of its samples, once the step has arrived."""
        sampled: list[int] = self.tokens.tolist()
        kept: list[int] = self.accepted.tolist()
        if len(sampled) == len(kept) == kept.count(1):  # a plain decode
            return [(token,) for token in sampled]
        ends = accumulate(row.samples for row in self.rows)
        return [
            tuple(sampled[end - row.samples : end - row.samples + count])
            for row, end, count in zip(self.rows, ends, kept, strict=True)
        ]


def read_back(
    rows: tuple[Row, ...], forward: ForwardResult, samples: SampleResult, ops: Ops, pool: EventPool
) -> LaunchedStep:
    """Start to read a step's results back, with the log-probabilities that its rows ask for."""
    return LaunchedStep(
        rows=rows,
        tokens=samples.arriving,
        accepted=samples.arriving_counts,
        logits=forward.logits.shape[0],
        logprobs=_logprobs(rows, forward.logits, samples.tokens, ops),
        prompt_logprobs=_prompt_logprobs(rows, forward.logits, samples.tokens, ops),
        arrival=Arrival(samples.tokens.device, pool),  # of all that
        moments=samples.arriving_moments,
    )


def _logprobs(rows: tuple[Row, ...], logits: Tensor, tokens: Tensor, ops: Ops) -> LogprobTensors | None:
    """Start to read the log-probabilities of the sampled tokens back, for the rows that asked for them."""
    wanted = [row.sequence.sampling.logprobs for row in rows]
    if wanted.count(None) == len(wanted):
        return None
    top = max([0 if wants is None else wants for wants in wanted])
    logit_indices: list[int] = []
    token_indices: list[int] = []
    logits_end = tokens_end = 0
    for row, wants in zip(rows, wanted, strict=True):
        logits_end += row.logits_count
        tokens_end += row.samples
        if wants is not None:
            logit_indices.extend(range(logits_end - row.samples, logits_end))
            token_indices.extend(range(tokens_end - row.samples, tokens_end))
    of_logits, of_tokens = upload(np.array((logit_indices, token_indices), np.int64), logits.device)
    return _read_logprobs(logits[of_logits], tokens[of_tokens], top, ops)


def _prompt_logprobs(rows: tuple[Row, ...], logits: Tensor, tokens: Tensor, ops: Ops) -> LogprobTensors | None:
    """Start to read the log-probabilities of prompt tokens back, for the rows that asked for them.

    A position that the step computes gives that of the prompt token behind it.
    """
    if logits.shape[0] <= tokens.shape[0]:
        return None  # only these would need more logits than there are samples
    logit_indices: list[int] = []
    next_tokens: list[int] = []
    end = top = 0
    for row in rows:
        if row.known_predictions:
            logit_indices.extend(range(end, end + row.known_predictions))
            next_tokens.extend(row.sequence.tokens[row.start + 1 : row.start + 1 + row.known_predictions])
            top = max(top, row.sequence.sampling.prompt_logprobs or 0)
        end += row.logits_count
    of_logits, chosen = upload(np.array((logit_indices, next_tokens), np.int64), logits.device)
    return _read_logprobs(logits[of_logits], chosen, top, ops)


def _read_logprobs(logits: Tensor, tokens: Tensor, top: int, ops: Ops) -> LogprobTensors:
    return LogprobTensors(to_host(tokens), *map(to_host, ops.logprobs(logits, tokens, top)))


def _take(logprobs: Iterator[PositionLogprobs], count: int, top: int | None) -> Logprobs:
    """Take the next ``count`` positions, each with the ``top`` most likely tokens only; none where ``top`` is None."""
    if top is None:
        return ()
    return tuple(PositionLogprobs(position.chosen, position.top[:top]) for position in islice(logprobs, count))
