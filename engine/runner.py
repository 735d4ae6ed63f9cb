"""The runner: carries a plan out on the device. Slots in, one ragged forward, samples out.

It knows rows and slots. What a token means (text, stops, finishing) is the host's business, in `output_state`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from draftline.engine.outputs import PositionLogprobs, TokenLogprob
from draftline.engine.sequence import Plan, Row
from draftline.engine.slot_writer import SlotWriter, sampling_features
from draftline.kernels.batch import KVCache
from draftline.kernels.ops import Ops
from draftline.kernels.slots import SampleRows, SlotTable
from draftline.models.model import Model
from draftline.spec.drafter import Drafter, DraftRows
from draftline.spec.verify import accepted_tokens


@dataclass(frozen=True, slots=True)
class RowResult:
    """What a step decided for one row.

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


def wants_prompt_logprobs(row: Row) -> bool:
    """Whether this step computes logits for prompt tokens whose log-probabilities were asked for."""
    sequence = row.sequence
    return sequence.sampling.prompt_logprobs is not None and sequence.output_len == 0


class Runner:
    """Owns the model, its cache and the slot table."""

    def __init__(
        self, model: Model, cache: KVCache, table: SlotTable, ops: Ops, drafter: Drafter, eos_ids: tuple[int, ...]
    ) -> None:
        """Everything is on one device; ``ops`` is that device's implementation."""
        self._model = model
        self._cache = cache
        self._table = table
        self._ops = ops
        self._drafter = drafter
        self._writer = SlotWriter(table, eos_ids)
        self._block_size = cache.keys[0].shape[1]
        self._device = table.tokens.device

    @property
    def max_draft_tokens(self) -> int:
        """The most drafts that a row can have."""
        return self._drafter.max_draft_tokens

    @torch.inference_mode()
    def run(self, plan: Plan) -> list[RowResult]:
        """Compute one step; the results are in the order of ``plan.rows``."""
        rows = plan.rows
        self._writer.apply(plan)
        self._draft(rows)
        logits = self._forward(rows)
        sampled, drafted = self._sample(rows, logits)
        return self._collect(rows, logits, sampled, drafted)

    def _draft(self, rows: tuple[Row, ...]) -> None:
        drafting = [row for row in rows if row.drafts]
        wanted = DraftRows(
            slots=tuple(row.slot for row in drafting),
            lengths=tuple(len(row.sequence.tokens) for row in drafting),
            counts=tuple(row.drafts for row in drafting),
        )
        self._drafter.propose(wanted, self._table)

    def _forward(self, rows: tuple[Row, ...]) -> Tensor:
        batch = self._ops.gather(
            self._table,
            torch.tensor([row.slot for row in rows], dtype=torch.int64).to(self._device),
            tuple(row.count + row.drafts for row in rows),
            tuple(row.start for row in rows),
            tuple(_logits_count(row) for row in rows),
            self._block_size,
        )
        return self._model.forward(batch, self._cache)

    def _sample(self, rows: tuple[Row, ...], logits: Tensor) -> tuple[list[int], list[int]]:
        """The token at every sampled position in row order, and what the slot table held there before (the drafts)."""
        sampling = tuple(row for row in rows if row.samples)
        if not sampling:
            return [], []
        places = [(row.slot, row.start + row.count + i) for row in sampling for i in range(row.drafts + 1)]
        # Two rows of one upload, each contiguous, as kernels expect them.
        slots, positions = torch.tensor(list(zip(*places, strict=True)), dtype=torch.int64).to(self._device)
        which = SampleRows(slots, positions, sampling_features(sampling), mask=None)
        tokens = self._ops.sample(_sampled_rows(rows, logits), which, self._table)
        both = torch.stack((tokens, self._table.tokens[slots, positions].long()))
        self._table.tokens[slots, positions] = tokens.int()
        sampled, drafted = both.tolist()
        return sampled, drafted

    def _collect(
        self, rows: tuple[Row, ...], logits: Tensor, sampled: list[int], drafted: list[int]
    ) -> list[RowResult]:
        """Verify the drafts and look up log-probabilities, row by row."""
        results: list[RowResult] = []
        next_logits = next_sample = 0
        for row in rows:
            row_logits = logits[next_logits : next_logits + _logits_count(row)]
            next_logits += len(row_logits)
            tokens: list[int] = []
            logprobs: list[PositionLogprobs] = []
            prompt_logprobs: list[PositionLogprobs] = []
            sequence = row.sequence
            if row.samples:
                end = next_sample + row.drafts + 1
                tokens = accepted_tokens(sampled[next_sample:end], drafted[next_sample : end - 1])
                next_sample = end
                if sequence.sampling.logprobs is not None:
                    at = len(row_logits) - row.drafts - 1
                    logprobs = self._logprobs(row_logits[at : at + len(tokens)], tokens, sequence.sampling.logprobs)
            if wants_prompt_logprobs(row):
                known = sequence.tokens[row.start + 1 : min(row.start + row.count, sequence.prompt_len - 1) + 1]
                prompt_logprobs = self._logprobs(
                    row_logits[: len(known)], known, sequence.sampling.prompt_logprobs or 0
                )
            results.append(RowResult(tokens, row.drafts, logprobs, prompt_logprobs))
        return results

    def _logprobs(self, logits: Tensor, tokens: list[int], top: int) -> list[PositionLogprobs]:
        if not tokens:
            return []
        chosen, ranks, top_ids, top_values = self._ops.logprobs(logits, torch.tensor(tokens).to(self._device), top)
        return [
            PositionLogprobs(
                TokenLogprob(token, logprob, rank),
                tuple(
                    TokenLogprob(i, value, place + 1) for place, (i, value) in enumerate(zip(ids, values, strict=True))
                ),
            )
            for token, logprob, rank, ids, values in zip(
                tokens, chosen.tolist(), ranks.tolist(), top_ids.tolist(), top_values.tolist(), strict=True
            )
        ]


def _logits_count(row: Row) -> int:
    """How many of the row's last query tokens want logits."""
    if wants_prompt_logprobs(row):
        return row.count + row.drafts
    return row.drafts + 1 if row.samples else 0


def _sampled_rows(rows: tuple[Row, ...], logits: Tensor) -> Tensor:
    """The logits that decide a token: all of them, unless prompt log-probabilities brought others along."""
    counts = [(_logits_count(row), row.drafts + 1 if row.samples else 0) for row in rows]
    if all(wanted == sampled for wanted, sampled in counts):
        return logits
    index: list[int] = []
    end = 0
    for wanted, sampled in counts:
        end += wanted
        index.extend(range(end - sampled, end))
    return logits[torch.tensor(index, device=logits.device)]
