"""Sampling and log-probabilities on the host: the CPU path, and the oracle of every faster sampler.

The token of a row is ``argmax(processed / T + gumbel(seed, position, token))`` over the tokens that the row's mask and
truncation leave, ties to the lowest id: the Gumbel-max trick (Gumbel 1954) with the noise of `philox.py` and the
processing of `logits.py`. The result is that of this formula, bit by bit, in float32. Most of its work is skipped where a
bound shows that it cannot matter (the noise never exceeds 16.64). Tensors of another device are copied to the host, so
every device gives the same tokens.

Degenerate logits have defined outcomes too, and affect only their own row:

* NaN logits count as -inf;
* a row whose largest logit, divided by the temperature, is infinite is greedy: +inf beats every finite logit, and of
  several the lowest id is taken;
* a row without any logit above -inf gives the lowest id that its mask and min_tokens allow (see `fallback`).

Not here: gradients, or state between calls.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from draftline.kernels.philox import GUMBEL_MAX, block_uniform, to_gumbel, token_gumbel
from draftline.kernels.reference.logits import (
    Floats,
    Ids,
    RowParams,
    fallback,
    process,
    read_rows,
    survivors,
)
from draftline.kernels.slots import SampleRows, SlotTable


def sample(logits: Tensor, rows: SampleRows, slots: SlotTable) -> Tensor:
    """The token at each row's position. See `Ops.sample`.

    Args:
        logits: [S, V] float32; left unchanged.
        rows: which sequence and position each row belongs to.
        slots: the slot table.

    Returns:
        [S] int64 token ids.
    """
    if logits.shape[0] == 0:
        return rows.slots.new_empty(0)
    values = logits.numpy(force=True)
    tokens = values.argmax(axis=1)  # documented to be the first of equals; NaN counts as larger than everything
    bests = values[np.arange(len(values)), tokens]
    is_usual = np.isfinite(bests)
    if rows.features or rows.masks is not None or not is_usual.all():
        with np.errstate(over="ignore", invalid="ignore"):
            for row, params in enumerate(read_rows(rows, slots)):
                if params.is_processed or not params.is_greedy or not is_usual[row]:
                    tokens[row] = _sample_row(values[row], params, slots, _mask(rows, params))
    return torch.from_numpy(tokens).to(logits.device)


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
    log_total = shifted.exp_().sum(dim=-1, keepdim=True, dtype=torch.float64).log_().to(torch.float32)
    return (chosen - log_total).squeeze(-1), ranks, top_ids, top_values - log_total


def _mask(rows: SampleRows, params: RowParams) -> Tensor | None:
    return rows.masks.words[params.mask_row] if rows.masks is not None and params.has_mask else None


def _sample_row(logits: Floats, params: RowParams, slots: SlotTable, mask: Tensor | None) -> int:
    values = logits
    if np.isnan(logits.max()):
        values = logits.copy()
        values[np.isnan(values)] = -np.inf
    if params.is_processed:
        values = process(values, params, slots, mask)
    best_id = int(values.argmax())
    if values[best_id] == -np.inf:
        return fallback(params, slots, mask, len(values))
    if params.is_greedy:
        return best_id
    scaled: Floats = values if params.temperature == 1.0 else values / np.float32(params.temperature)
    return _draw(scaled, best_id, params) if np.isfinite(scaled[best_id]) else best_id


def _draw(scaled: Floats, best_id: int, params: RowParams) -> int:
    """The token with the largest sum of logit and noise, among those that truncation leaves.

    Args:
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
    u = block_uniform(blocks, params.position, params.seed)
    # -log(-log(u)) <= -log(1 - u), so tokens with 1 - u > exp(score - least) cannot win. That saves nearly all logarithms.
    indices = np.flatnonzero(1 - u <= np.exp(scores - np.float32(least)))
    sums = scores.reshape(-1)[indices] + to_gumbel(u.reshape(-1)[indices])
    # Ascending blocks of ascending tokens: the first of equals is the one with the lowest id.
    winner = int(indices[sums.argmax()])
    return int(blocks[winner // 4]) * 4 + winner % 4


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
