"""``LaunchedStep``: a step on its way through the device, and what it decided once it has arrived."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from draftline.engine.outputs import PositionLogprobs, TokenLogprob
from draftline.engine.sequence import Row
from draftline.engine.transfer import Readback
from draftline.spec.verify import accepted_tokens


@dataclass(slots=True)
class RowResult:
    """What a step decided for one row. Read-only, but not frozen, as `Row` is not.

    Attributes:
        tokens: the accepted tokens, empty where the row did not reach its last known token.
        drafted: how many drafts were verified.
        logprobs: one a token, where asked for.
        prompt_logprobs: for prompt positions ``start + 1`` to ``start + count``, where asked for.
    """

    tokens: list[int]
    drafted: int
    logprobs: list[PositionLogprobs]
    prompt_logprobs: list[PositionLogprobs]


@dataclass(frozen=True, slots=True)
class LogprobTensors:
    """The log-probabilities of L positions on the host; see ``Ops.logprobs``."""

    tokens: Tensor
    chosen: Tensor
    ranks: Tensor
    top_ids: Tensor
    top_values: Tensor

    def read(self) -> list[PositionLogprobs]:
        """All of them, with as many of the most likely tokens as the row that wants most."""
        values = (self.tokens, self.chosen, self.ranks, self.top_ids, self.top_values)
        return [
            PositionLogprobs(
                TokenLogprob(token, logprob, rank),
                tuple(
                    TokenLogprob(i, value, place + 1) for place, (i, value) in enumerate(zip(ids, tops, strict=True))
                ),
            )
            for token, logprob, rank, ids, tops in zip(*(value.tolist() for value in values), strict=True)
        ]


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step that the device computes, or has computed.

    Attributes:
        rows: the plan's.
        readback: the transfers that fill the tensors.
        tokens: [S] int64, sampled at each sampled position in row order.
        drafts: [S] int64, what stood at the same positions before, if any row had drafts.
        logprobs: of the sampled positions of the rows that asked for them, if any did.
        prompt_logprobs: of prompt positions, likewise.
    """

    rows: tuple[Row, ...]
    readback: Readback
    tokens: Tensor
    drafts: Tensor | None
    logprobs: LogprobTensors | None
    prompt_logprobs: LogprobTensors | None

    def results(self) -> list[RowResult]:
        """Wait until the step has arrived; its results, in the order of ``rows``."""
        self.readback.wait()
        sampled = self.tokens.tolist()
        drafted = self.drafts.tolist() if self.drafts is not None else []
        logprobs = iter(self.logprobs.read() if self.logprobs is not None else ())
        prompt_logprobs = iter(self.prompt_logprobs.read() if self.prompt_logprobs is not None else ())
        results: list[RowResult] = []
        start = 0
        for row in self.rows:
            end = start + row.samples_count
            tokens = sampled[start:end]
            if row.drafts:
                tokens = accepted_tokens(tokens, drafted[start : end - 1])
            start = end
            sampling = row.sequence.sampling
            own: list[PositionLogprobs] = []
            prompt: list[PositionLogprobs] = []
            if sampling.logprobs is not None:
                own = [_cut(next(logprobs), sampling.logprobs) for _ in range(row.samples_count)][: len(tokens)]
            if sampling.prompt_logprobs is not None:
                prompt = [_cut(next(prompt_logprobs), sampling.prompt_logprobs) for _ in range(row.known_predictions)]
            results.append(RowResult(tokens, row.drafts, own, prompt))
        return results


def _cut(logprobs: PositionLogprobs, top: int) -> PositionLogprobs:
    """With the ``top`` most likely tokens only."""
    return logprobs if len(logprobs.top) == top else PositionLogprobs(logprobs.chosen, logprobs.top[:top])
