"""Sampling and log-probabilities on the host: the CPU path, and the oracle of every faster sampler.

The token of a row is ``argmax(processed / T + gumbel(seed, position, token))`` over the tokens that the row's mask and
truncation leave, ties to the lowest id: the Gumbel-max trick (Gumbel 1954) with the noise of `philox.py` and the
processing of `logits.py`. The result is that of this formula, bit by bit, in float32. Most of its work is skipped where
a bound shows that it cannot matter (the noise never exceeds 16.64). Tensors of another device are copied to the host,
so every device gives the same tokens.

Degenerate logits have defined outcomes too, and affect only their own row:

* NaN logits count as -inf;
* a row whose largest logit, divided by the temperature, is infinite is greedy: +inf beats every finite logit, and of
  several the lowest id is taken;
* a row without any logit above -inf gives the lowest id that its mask and min_tokens allow (see `fallback`).

Not here: gradients, or state between calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from draftline.kernels.philox import GUMBEL_MAX, block_uniform, to_gumbel, token_gumbel
from draftline.kernels.reference.logits import (
    MIN_TEMPERATURE,
    Floats,
    Ids,
    RowParams,
    fallback,
    process,
    read_rows,
    survivors,
)
from draftline.kernels.slots import SampleRows, SlotTable

_GROUP_BLOCKS = 4096
"""Blocks of several rows whose noise is made at once: numpy's overhead counts less, and they fit a CPU's cache."""


def sample(logits: Tensor, rows: SampleRows, table: SlotTable) -> Tensor:
    """The token at each row's position. See `Ops.sample`.

    Args:
        logits: [S, V] float32; left unchanged.
        rows: which sequence and position each row belongs to.
        table: the slot table.

    Returns:
        [S] int64 token ids.
    """
    if logits.shape[0] == 0:
        return rows.slots.new_empty(0)
    values = logits.numpy(force=True)
    tokens, is_usual = _best(values)
    if rows.features or rows.masks is not None or not is_usual.all():
        with np.errstate(over="ignore", invalid="ignore"):
            for group in _groups(_contests(values, tokens, is_usual, rows, table)):
                tokens[[contest.row for contest in group]] = _winners(group)
    return torch.from_numpy(tokens).to(logits.device)


def greedy(logits: Tensor, slots: Tensor, table: SlotTable) -> Tensor | None:
    """The index of each row's largest logit, the first of equals; None if a row has none or its temperature is above 0.

    Args:
        logits: [S, V].
        slots: [S] int64, each row's slot.
        table: the slot table.
    """
    if (table.temperature.numpy(force=True)[slots.numpy(force=True)] >= MIN_TEMPERATURE).any():
        return None
    tokens, is_usual = _best(logits.numpy(force=True))
    return torch.from_numpy(tokens).to(logits.device) if is_usual.all() else None


def _best(values: Floats) -> tuple[Ids, npt.NDArray[np.bool_]]:
    """Each row's largest entry, and whether it is finite: [S, V] -> [S], [S]."""
    tokens = values.argmax(axis=1)  # documented to be the first of equals; NaN counts as larger than everything
    return tokens, np.isfinite(values[np.arange(len(values)), tokens])


def logprobs(logits: Tensor, token_ids: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-probabilities under the model's own distribution. See `Ops.logprobs`.

    Args:
        logits: [S, V] float32; left unchanged. NaN counts as -inf; a row whose largest logit is infinite is uniform
            over its largest logits.
        token_ids: [S] int64, the chosen tokens.
        top: how many most likely tokens to report, most likely first, equals by id; at most V.

    Returns:
        The chosen tokens' log-probabilities [S] float32; their ranks [S] int64, 1 + how many tokens are strictly more
        likely; the most likely ids [S, top] int64 and their log-probabilities [S, top] float32.

    Raises:
        ValueError: ``top`` is negative or more than the vocabulary.
    """
    if not 0 <= top <= logits.shape[1]:
        raise ValueError(f"logprobs: top is {top}, but the vocabulary has {logits.shape[1]} tokens")
    largest = logits.amax(dim=-1, keepdim=True)
    if bool((largest.abs() < torch.inf).all()):
        shifted = logits - largest
    else:
        clean = logits.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
        largest = clean.amax(dim=-1, keepdim=True)
        shifted = torch.where(clean == largest, 0.0, clean - largest)
    chosen = shifted.gather(-1, token_ids.unsqueeze(-1))
    ranks = 1 + (shifted > chosen).sum(dim=-1)
    top_ids = _top_ids(shifted, top)
    top_values = shifted.gather(-1, top_ids)
    log_total = sum_rows(shifted.exp_()).log_().to(torch.float32)
    return (chosen - log_total).squeeze(-1), ranks, top_ids, top_values - log_total


def sum_rows(values: Tensor) -> Tensor:
    """The sum of each row in float64, the same bits alone and among others: [S, V] -> [S, 1]."""
    # torch divides a large sum between threads if it is the only one. So a single row runs as two.
    several = values.expand(2, -1) if values.shape[0] == 1 else values
    return several.sum(dim=-1, keepdim=True, dtype=torch.float64)[: values.shape[0]]


def _mask(rows: SampleRows, params: RowParams) -> Tensor | None:
    return rows.masks.words[params.mask_row] if rows.masks is not None and params.has_mask else None


@dataclass(frozen=True, slots=True)
class _Contest:
    """The tokens of a row that noise may make the winner.

    Attributes:
        row: the row's index.
        params: its parameters.
        least: the winner's sum of logit and noise is at least this.
        blocks: [N], ascending, the blocks of four tokens that hold them.
        scores: [N, 4], processed logits divided by the temperature; -inf for tokens that truncation removes.
    """

    row: int
    params: RowParams
    least: float
    blocks: Ids
    scores: Floats


def _contests(
    values: Floats, tokens: Ids, is_usual: npt.NDArray[np.bool_], rows: SampleRows, table: SlotTable
) -> Iterator[_Contest]:
    """The contests of the rows that need noise. The tokens of other rows are written to ``tokens``."""
    for row, params in enumerate(read_rows(rows, table)):
        if params.is_processed or not params.is_greedy or not is_usual[row]:
            tokens[row], scaled = _scale(values[row], params, table, _mask(rows, params))
            if scaled is not None:
                yield _contest(row, scaled, int(tokens[row]), params)


def _scale(logits: Floats, params: RowParams, table: SlotTable, mask: Tensor | None) -> tuple[int, Floats | None]:
    """The most likely token, and [V] processed logits divided by the temperature; None where that token is taken."""
    values = logits
    if np.isnan(logits.max()):
        values = logits.copy()
        values[np.isnan(values)] = -np.inf
    if params.is_processed:
        values = process(values, params, table, mask)
    best_id = int(values.argmax())
    if values[best_id] == -np.inf:
        return fallback(params, table, mask, len(values)), None
    if params.is_greedy:
        return best_id, None
    scaled: Floats = values if params.temperature == 1.0 else values / np.float32(params.temperature)
    return best_id, scaled if np.isfinite(scaled[best_id]) else None


def _contest(row: int, scaled: Floats, best_id: int, params: RowParams) -> _Contest:
    """The contest of a row.

    Args:
        row: its index.
        scaled: [V], processed logits divided by the temperature.
        best_id: a most likely token; its logit is finite.
        params: the row's parameters.
    """
    best = float(scaled[best_id])
    # The winner's sum is at least the most likely token's, which survives every truncation. The slack is some ten times
    # the largest rounding error of both.
    least = best + token_gumbel(params.seed, params.position, best_id) - 1e-6 * (100 + abs(best))
    if params.is_truncated:
        blocks, scores = _blocks_of(survivors(scaled, best, params), scaled)
    else:
        blocks, scores = _blocks_reaching(least - GUMBEL_MAX, scaled)
    return _Contest(row, params, least, blocks, scores)


def _groups(contests: Iterable[_Contest]) -> Iterator[list[_Contest]]:
    """Contests in their order, together as long as they have few blocks."""
    group: list[_Contest] = []
    size = 0
    for contest in contests:
        size += len(contest.blocks)
        if group and size > _GROUP_BLOCKS:
            yield group
            group, size = [], len(contest.blocks)
        group.append(contest)
    if group:
        yield group


def _winners(group: list[_Contest]) -> list[int]:
    """The token of each contest with the largest sum of logit and noise."""
    if len(group) == 1:
        (one,) = group
        blocks, scores, ends = one.blocks, one.scores, np.zeros(0, dtype=np.int64)
        u = block_uniform(blocks, one.params.position, one.params.seed)
        least = np.array(one.least, dtype=np.float32)
    else:
        counts = [len(contest.blocks) for contest in group]
        blocks = np.concatenate([contest.blocks for contest in group])
        scores = np.concatenate([contest.scores for contest in group])
        ends = np.cumsum(counts[:-1]) * 4
        u = block_uniform(
            blocks,
            np.repeat(np.array([contest.params.position for contest in group], dtype=np.uint64), counts),
            np.repeat(np.array([contest.params.seed for contest in group], dtype=np.int64).view(np.uint64), counts),
        )
        least = np.repeat(np.array([[contest.least] for contest in group], dtype=np.float32), counts, axis=0)
    # -log(-log(u)) <= -log(1 - u), so tokens with 1 - u > exp(score - least) cannot win. That saves nearly all
    # logarithms.
    indices = np.flatnonzero(1 - u <= np.exp(scores - least))
    sums = scores.reshape(-1)[indices] + to_gumbel(u.reshape(-1)[indices])
    winners = []
    bounds = [0, *np.searchsorted(indices, ends).tolist(), len(indices)]
    for start, end in pairwise(bounds):
        # Ascending blocks of ascending tokens: the first of equals is the one with the lowest id.
        winner = int(indices[start + sums[start:end].argmax()])
        winners.append(int(blocks[winner // 4]) * 4 + winner % 4)
    return winners


def _blocks_of(ids: Ids, scaled: Floats) -> tuple[Ids, Floats]:
    """The blocks of four that hold these tokens, ascending [N], and their scores [N, 4]; -inf for other tokens."""
    blocks, indices = np.unique(ids // 4, return_inverse=True)
    scores = np.full((len(blocks), 4), -np.inf, dtype=np.float32)
    scores[indices, ids % 4] = scaled[ids]
    return blocks, scores


def _blocks_reaching(least: float, scaled: Floats) -> tuple[Ids, Floats]:
    """The blocks of four in which some score is at least ``least``, ascending [N], and all their scores [N, 4]."""
    missing = -len(scaled) % 4
    padded = np.pad(scaled, (0, missing), constant_values=-np.inf) if missing else scaled
    blocks = np.flatnonzero((padded >= np.float32(least)).view(np.uint32))  # four truth values are one integer
    return blocks, padded.reshape(-1, 4).take(blocks, axis=0)


def _top_ids(values: Tensor, count: int) -> Tensor:
    """Each row's largest entries, larger first, then lower index: [S, V] -> [S, count] int64."""
    if count == 0:
        return torch.empty(values.shape[0], 0, dtype=torch.int64, device=values.device)
    # topk leaves open which of equals it takes and in which order: one more entry than wanted shows where that matters.
    largest, ids = values.topk(min(count + 1, values.shape[1]), dim=-1)
    tied = (largest[:, 1:] == largest[:, :-1]).any(dim=-1)
    for row in tied.nonzero().flatten().tolist():
        candidates = (values[row] >= largest[row, count - 1]).nonzero().squeeze(1)
        order = values[row, candidates].sort(descending=True, stable=True).indices
        ids[row, :count] = candidates[order[:count]]
    return ids[:, :count]
