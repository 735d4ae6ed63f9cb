"""Sampling and log-probabilities in plain torch: the CPU path, and the oracle of every faster sampler.

The token of a row is ``argmax(processed / T + gumbel(seed, position, token))`` over the tokens that the row's mask and
truncation leave, ties to the lowest id: the Gumbel-max trick (Gumbel 1954) with the noise of `philox.py` and the
processing of `reference_processing.py`. The result is that of this formula, bit by bit, in float32; most of the work in
it is left out where a bound shows that it cannot matter (the noise never exceeds 16.64).

What no sampler should be given has a defined outcome too, in its own row only:

* NaN logits count as -inf;
* a row whose largest logit, divided by the temperature, is infinite is greedy: +inf beats every finite logit, and of
  several the lowest id is taken;
* a row without any logit above -inf gives the lowest id that its mask and min_tokens allow (see `fallback`).

Nothing here is differentiable, and nothing is kept between calls.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from draftline.kernels.philox import GUMBEL_MAX, block_gumbel, token_gumbel
from draftline.kernels.reference_processing import (
    RowParams,
    fallback,
    process,
    read_rows,
    sorted_by_value,
    survivors,
)
from draftline.kernels.slots import SampleRows, SlotTable

_ARGMAX_BLOCK = 256
_ARGMAX_DIRECT = 4096

_GROUP_BLOCKS = 4096
"""Rows draw together until they have so many blocks: Philox is a hundred operations, whatever its size."""


@dataclass(frozen=True, slots=True)
class _Contest:
    """The tokens of a row that noise can still make the winner, in blocks of four as Philox gives their noise.

    Attributes:
        row: the row's index in the batch.
        params: the row's parameters.
        blocks: [N] int64, ascending.
        scores: [N, 4] float32, ``processed / T`` of the blocks' tokens; -inf if it cannot be sampled.
    """

    row: int
    params: RowParams
    blocks: Tensor
    scores: Tensor


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
    best_ids, bests = first_argmax(logits)
    if not rows.features and rows.mask is None and bool((bests.abs() < torch.inf).all()):
        return best_ids
    tokens: list[int] = best_ids.tolist()
    group: list[_Contest] = []
    for row, (params, best) in enumerate(zip(read_rows(rows, slots), bests.tolist(), strict=True)):
        if params.is_greedy and not params.is_processed and math.isfinite(best):
            continue
        values, mask = logits[row], None if rows.mask is None else rows.mask[row]
        if math.isnan(best):
            values = values.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
        if math.isnan(best) or params.is_processed:
            values = process(values, params, slots, mask)
            tokens[row], best = _first_argmax_of_row(values)
        if best == -math.inf:
            tokens[row] = fallback(params, slots, mask, values.numel())
        elif not params.is_greedy:
            # A tensor as the divisor: torch multiplies by the reciprocal of a number on some devices.
            scaled = values if params.temperature == 1.0 else values / slots.temperature[params.slot]
            best = float(scaled[tokens[row]])
            if math.isfinite(best):
                group.append(_contest(row, params, scaled, tokens[row], best))
        if sum(contest.blocks.numel() for contest in group) >= _GROUP_BLOCKS:
            _draw(group, tokens)
            group = []
    _draw(group, tokens)
    return torch.tensor(tokens, dtype=torch.int64, device=logits.device)


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


def first_argmax(values: Tensor) -> tuple[Tensor, Tensor]:
    """Each row's largest entry, the first of equals; NaN is larger than everything.

    Args:
        values: [S, V] float32.

    Returns:
        Indices [S] int64 and values [S] float32.
    """
    count, width = values.shape
    # argmax goes one by one where amax uses vectors: find the maximum's block first. argmax is documented to return the
    # first of equals, and takes NaN for a maximum, as amax does.
    blocks = width // _ARGMAX_BLOCK
    if width < _ARGMAX_DIRECT:
        indices = values.argmax(dim=-1)
        return indices, values.gather(-1, indices.unsqueeze(-1)).squeeze(-1)
    main = blocks * _ARGMAX_BLOCK
    starts = values[:, :main].unflatten(1, (blocks, _ARGMAX_BLOCK)).amax(dim=-1).argmax(dim=-1) * _ARGMAX_BLOCK
    window = starts.unsqueeze(-1) + torch.arange(_ARGMAX_BLOCK, device=values.device)
    if main < width:
        tail = torch.arange(main, width, device=values.device).expand(count, -1)
        window = torch.cat((window, tail), dim=-1)
    nearby = values.gather(-1, window)
    picks = nearby.argmax(dim=-1, keepdim=True)
    return window.gather(-1, picks).squeeze(-1), nearby.gather(-1, picks).squeeze(-1)


def _first_argmax_of_row(values: Tensor) -> tuple[int, float]:
    index, value = first_argmax(values.unsqueeze(0))
    return int(index), float(value)


def _contest(row: int, params: RowParams, scaled: Tensor, best_id: int, best: float) -> _Contest:
    """Which tokens of a row need noise.

    Args:
        row: the row's index in the batch.
        params: the row's parameters.
        scaled: [V] float32, processed logits divided by the temperature.
        best_id: a most likely token.
        best: its scaled logit, finite.
    """
    if params.is_truncated:
        ids = survivors(scaled, best, params)
        blocks, places = (ids // 4).unique(return_inverse=True)
        scores = scaled.new_full((blocks.numel(), 4), -torch.inf)
        scores[places, ids % 4] = scaled[ids]
        return _Contest(row, params, blocks, scores)
    # Noise must lift the winner at least to where it lifts the most likely token, and lifts nothing by more than
    # GUMBEL_MAX. The slack is some ten times what the roundings on both sides can add up to.
    slack = 1e-6 * (100 + abs(best))
    least = best + token_gumbel(params.seed, params.position, best_id) - GUMBEL_MAX - slack
    missing = -scaled.numel() % 4
    padded = torch.nn.functional.pad(scaled, (0, missing), value=-torch.inf) if missing else scaled
    blocks = (padded >= least).view(torch.int32).nonzero().squeeze(1)  # four bools are one integer
    return _Contest(row, params, blocks, padded.view(-1, 4).index_select(0, blocks))


def _draw(group: list[_Contest], tokens: list[int]) -> None:
    """Draw the noise of these rows' blocks and put the winners into ``tokens``."""
    if not group:
        return
    device = group[0].blocks.device
    sizes = [contest.blocks.numel() for contest in group]
    positions = torch.tensor([contest.params.position for contest in group], device=device)
    seeds = torch.tensor([contest.params.seed for contest in group], device=device)
    if len(group) == 1:
        positions, seeds = positions[0], seeds[0]
    else:
        counts = torch.tensor(sizes, device=device)
        positions, seeds = positions.repeat_interleave(counts), seeds.repeat_interleave(counts)
    noise = block_gumbel(torch.cat([contest.blocks for contest in group]), positions, seeds)
    for contest, part in zip(group, noise.split(sizes), strict=True):
        # Ascending blocks of ascending tokens: the first of equals is the one with the lowest id.
        place, _ = _first_argmax_of_row(part.add_(contest.scores).view(-1))
        tokens[contest.row] = int(contest.blocks[place // 4]) * 4 + place % 4


def _top_ids(values: Tensor, count: int) -> Tensor:
    """Each row's largest entries, larger first, then lower index: [S, V] -> [S, count] int64."""
    if count == 0:
        return torch.empty(values.shape[0], 0, dtype=torch.int64, device=values.device)
    # topk leaves open which of equals it takes and in which order: one more entry than wanted shows where that matters.
    largest, ids = values.topk(min(count + 1, values.shape[1]), dim=-1)
    tied = (largest[:, 1:] == largest[:, :-1]).any(dim=-1)
    for row in tied.nonzero().flatten().tolist():
        candidates = (values[row] >= largest[row, count - 1]).nonzero().squeeze(1)
        ids[row, :count] = sorted_by_value(values[row], candidates)[:count]
    return ids[:, :count]
