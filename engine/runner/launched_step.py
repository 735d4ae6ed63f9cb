"""``LaunchedStep``: a step on its way through the device, and what it decided once it has arrived."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, islice

from torch import Tensor

from draftline.engine.outputs import PositionLogprobs, TokenLogprob
from draftline.engine.request.sequence import Row
from draftline.engine.runner.timing import Stopwatch
from draftline.engine.runner.transfer import Readback

Logprobs = tuple[PositionLogprobs, ...]

RowResult = tuple[tuple[int, ...], Logprobs, Logprobs]
"""What a step decided for one row: the accepted tokens, none where the row did not reach its last known token; their
log-probabilities, where asked for; and those of the prompt's positions ``start + 1`` to ``start + count``, likewise."""


@dataclass(frozen=True, slots=True)
class LogprobTensors:
    """The log-probabilities of L positions on the host; see ``Ops.logprobs``."""

    tokens: Tensor
    chosen: Tensor
    ranks: Tensor
    top_ids: Tensor
    top_values: Tensor

    def read(self) -> Iterator[PositionLogprobs]:
        """All of them, with as many of the most likely tokens as the row that wants most."""
        values = (self.tokens, self.chosen, self.ranks, self.top_ids, self.top_values)
        for token, logprob, rank, ids, tops in zip(*(value.tolist() for value in values), strict=True):
            top = tuple(
                TokenLogprob(i, value, place) for place, (i, value) in enumerate(zip(ids, tops, strict=True), 1)
            )
            yield PositionLogprobs(TokenLogprob(token, logprob, rank), top)


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step that the device computes, or has computed.

    Attributes:
        rows: the plan's.
        readback: the transfers that fill the tensors.
        tokens: [S] int64, sampled at each sampled position in row order.
        accepted: [R] int32, how many of its tokens each row keeps.
        logprobs: of the sampled positions of the rows that asked for them, if any did.
        prompt_logprobs: of prompt positions, likewise.
        watch: how long its parts take on the device, where it drafted.
    """

    rows: tuple[Row, ...]
    readback: Readback
    tokens: Tensor
    accepted: Tensor
    logprobs: LogprobTensors | None
    prompt_logprobs: LogprobTensors | None
    watch: Stopwatch | None = None

    def wait(self) -> None:
        """Wait until the step has arrived."""
        self.readback.wait()

    def results(self) -> Iterable[RowResult]:
        """The results of a step that has arrived, in the order of ``rows``."""
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
        return zip(tokens, logprobs, prompt_logprobs, strict=True)

    def accepted_tokens(self) -> list[tuple[int, ...]]:
        """The tokens that each row keeps of its samples, once the step has arrived."""
        sampled, kept = self.tokens.tolist(), self.accepted.tolist()
        if len(sampled) == len(kept) == kept.count(1):
            return [(token,) for token in sampled]
        ends = accumulate(row.samples for row in self.rows)
        return [
            tuple(sampled[end - row.samples : end - row.samples + count])
            for row, end, count in zip(self.rows, ends, kept, strict=True)
        ]


def _take(logprobs: Iterator[PositionLogprobs], count: int, top: int | None) -> Logprobs:
    """The next ``count``, each with the ``top`` most likely tokens only; none where ``top`` is None."""
    if top is None:
        return ()
    return tuple(PositionLogprobs(position.chosen, position.top[:top]) for position in islice(logprobs, count))
