"""What turns a row of logits into the distribution that is sampled: penalties, bias, masks, truncation.

Each function works on one row and on what that row asks for, and touches no more of it than it must: a penalty costs as
much as the history is long, truncation sorts the tokens that can survive it. One row at a time also keeps the row in
cache and makes its result independent of its neighbours.

The definitions are those of vLLM and Hugging Face transformers, with every tie decided (higher logit first, then lower
id). The draw itself is in `reference_sampling.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from draftline.kernels.slots import SampleRows, SamplingFeatures, SlotTable

MIN_TEMPERATURE = 1e-5
"""Temperatures below this are greedy: dividing by them would drown the noise, and in the end overflow."""

_LEAST_LOG_WEIGHT = -80.0
_COMMON_SHARE = 1e-4

_T = TypeVar("_T", int, float)


@dataclass(frozen=True, slots=True)
class RowParams:
    """One row's parameters, on the host. What the step's features leave out is neutral. See `SlotTable`."""

    slot: int
    position: int
    seed: int
    prompt_len: int
    min_length: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    has_bias: bool
    has_mask: bool

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken and no noise is needed."""
        return self.temperature < MIN_TEMPERATURE

    @property
    def is_penalised(self) -> bool:
        """Whether the history changes the logits."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def is_processed(self) -> bool:
        """Whether anything changes the logits before the temperature does."""
        return self.has_mask or self.has_bias or self.position < self.min_length or self.is_penalised

    @property
    def is_truncated(self) -> bool:
        """Whether top-k, top-p or min-p is on."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0


def read_rows(rows: SampleRows, slots: SlotTable) -> list[RowParams]:
    """Bring the rows' parameters to the host: one small copy for each column that some row uses."""
    count = rows.slots.numel()

    def column(values: Tensor, feature: SamplingFeatures, neutral: _T) -> list[_T]:
        if feature not in rows.features:
            return [neutral] * count
        column: list[_T] = values[rows.slots].tolist()
        return column

    feature = SamplingFeatures
    has_bias, has_mask = [False] * count, [False] * count
    if feature.LOGIT_BIAS in rows.features:
        has_bias = (slots.bias_ids[rows.slots] >= 0).any(dim=-1).tolist()
    if rows.mask is not None:
        has_mask = (rows.mask != -1).any(dim=-1).tolist()
    columns = zip(
        rows.slots.tolist(),
        rows.positions.tolist(),
        column(slots.seed, feature.TEMPERATURE, 0),
        column(slots.prompt_lens, feature.PENALTIES, 0),
        column(slots.min_length, feature.MIN_TOKENS, 0),
        column(slots.temperature, feature.TEMPERATURE, 0.0),
        column(slots.top_k, feature.TOP_K, 0),
        column(slots.top_p, feature.TOP_P, 1.0),
        column(slots.min_p, feature.MIN_P, 0.0),
        column(slots.repetition_penalty, feature.PENALTIES, 1.0),
        column(slots.presence_penalty, feature.PENALTIES, 0.0),
        column(slots.frequency_penalty, feature.PENALTIES, 0.0),
        has_bias,
        has_mask,
        strict=True,
    )
    return [RowParams(*values) for values in columns]


def process(logits: Tensor, params: RowParams, slots: SlotTable, mask: Tensor | None) -> Tensor:
    """Penalties, logit bias, min_tokens and mask, in this order.

    Ids outside the vocabulary, in a history as in a bias or among stop ids, are ignored.

    Args:
        logits: [V] float32, without NaN; left unchanged.
        params: the row's parameters.
        slots: the slot table.
        mask: [ceil(V / 32)] int32 of allowed-token bits, or None.

    Returns:
        [V] float32; what must not be sampled is -inf.
    """
    processed = logits.clone()
    if params.is_penalised:
        _penalise(processed, params, slots)
    if params.has_bias:
        ids, values = slots.bias_ids[params.slot], slots.bias_values[params.slot]
        known = _in_vocabulary(ids, processed)
        processed.index_add_(0, ids[known].long(), values[known])
    if params.position < params.min_length:
        ids = slots.stop_ids[params.slot]
        processed[ids[_in_vocabulary(ids, processed)].long()] = -torch.inf
    if mask is not None and params.has_mask:
        processed.masked_fill_(~allowed_tokens(mask, processed.numel()), -torch.inf)
    return processed


def fallback(params: RowParams, slots: SlotTable, mask: Tensor | None, vocab: int) -> int:
    """The token of a row that has no finite logit: the lowest id that is allowed.

    A mask weighs more than min_tokens: where it allows stop ids only, the lowest of them is taken. 0 if it allows none.
    """
    allowed = torch.ones(vocab, dtype=torch.bool, device=slots.stop_ids.device)
    if mask is not None:
        allowed = allowed_tokens(mask, vocab)
    preferred = allowed.clone()
    if params.position < params.min_length:
        ids = slots.stop_ids[params.slot]
        preferred[ids[(ids >= 0) & (ids < vocab)].long()] = False
    return int((preferred if bool(preferred.any()) else allowed).to(torch.int32).argmax())


def allowed_tokens(mask: Tensor, vocab: int) -> Tensor:
    """Unpack allowed-token bits: [ceil(vocab / 32)] int32 -> [vocab] bool."""
    shifts = torch.arange(32, dtype=torch.int32, device=mask.device)
    return (mask.unsqueeze(-1) >> shifts).bitwise_and_(1).view(-1)[:vocab].to(torch.bool)


def survivors(scaled: Tensor, top: float, params: RowParams) -> Tensor:
    """The tokens that top-k, then top-p, then min-p leave.

    * top-k: the k most likely.
    * top-p: the fewest most likely tokens whose share of what top-k left reaches p (Holtzman et al. 2020): a token stays
      while those before it have less than p. The weights are float32, their sums float64.
    * min-p: tokens whose weight ``exp(scaled - top)`` is at least min_p, the most likely token's weight being 1
      (Nguyen et al. 2024).

    Args:
        scaled: [V] float32, processed logits divided by the temperature.
        top: their maximum, finite.
        params: the row's parameters, with at least one of the three on.

    Returns:
        [N] int64 ids in no particular order, N >= 1. Tokens of -inf may be among them.
    """
    if 0 < params.top_k < scaled.numel():
        ids = _top_k(scaled, params.top_k)
        weights = _weights(scaled[ids], top)
        if params.top_p < 1.0:
            size = _nucleus_size(weights, _total(weights), params.top_p)
            ids, weights = ids[:size], weights[:size]
        return ids[weights >= params.min_p]
    weights = _weights(scaled, top)
    if params.top_p < 1.0:
        ids = _nucleus(scaled, weights, params.top_p)
        return ids[weights[ids] >= params.min_p]
    return (weights >= params.min_p).nonzero().squeeze(1)


def sorted_by_value(values: Tensor, ids: Tensor) -> Tensor:
    """Ascending ids ordered by their values [V], descending; a stable sort leaves equals in the order of their ids."""
    return ids[values[ids].sort(descending=True, stable=True).indices]


def _penalise(logits: Tensor, params: RowParams, slots: SlotTable) -> None:
    history = slots.tokens[params.slot, : params.position]
    if params.repetition_penalty != 1.0:
        ids = history[_in_vocabulary(history, logits)].long()
        values, penalty = logits[ids], slots.repetition_penalty[params.slot]
        # A token that occurs twice is written twice, with the same value.
        logits[ids] = torch.where(values > 0, values / penalty, values * penalty)
    if params.presence_penalty != 0.0 or params.frequency_penalty != 0.0:
        output = history[params.prompt_len :]
        ids, counts = output[_in_vocabulary(output, logits)].long().unique(return_counts=True)
        logits[ids] = logits[ids] - params.frequency_penalty * counts.to(logits.dtype) - params.presence_penalty


def _in_vocabulary(ids: Tensor, logits: Tensor) -> Tensor:
    return (ids >= 0) & (ids < logits.numel())


def _top_k(scaled: Tensor, k: int) -> Tensor:
    """The k most likely ids, most likely first, equals by id; fewer if fewer are above -inf."""
    least = scaled.topk(k).values[-1].clamp_(min=torch.finfo(scaled.dtype).min)
    return sorted_by_value(scaled, (scaled >= least).nonzero().squeeze(1))[:k]


def _nucleus(scaled: Tensor, weights: Tensor, p: float) -> Tensor:
    """The nucleus of all tokens, most likely first, sorting only tokens that can be in it.

    Any set of all tokens above some weight holds the nucleus if its mass reaches p. The common tokens mostly do. If
    not, the tokens below (1 - p) / 2V of the mass are certain to leave more than p to the others.
    """
    total = _total(weights)
    candidates = (weights >= _COMMON_SHARE * total).nonzero().squeeze(1)
    # The margin is far above float64's rounding of these sums, so that the sets cannot depend on the order of summation.
    if _total(weights[candidates]) < p * total * (1 + 1e-9):
        candidates = (weights >= (1 - p) * total / (2 * weights.numel())).nonzero().squeeze(1)
    ids = sorted_by_value(scaled, candidates)
    return ids[: _nucleus_size(weights[ids], total, p)]


def _nucleus_size(weights: Tensor, total: float, p: float) -> int:
    """How many of these descending weights it takes to reach p of the total; at least one."""
    masses = weights.to(torch.float64).cumsum(0)
    return 1 + int((masses[:-1] < p * total).sum())


def _weights(scaled: Tensor, top: float) -> Tensor:
    """``exp(scaled - top)``, raised to e**-80 where it is less.

    That changes no sum of weights (the largest is 1) and no draw (noise cannot make up for 80), and exp is slow below.
    """
    return (scaled - top).clamp_(min=_LEAST_LOG_WEIGHT).exp_()


def _total(weights: Tensor) -> float:
    return float(weights.sum(dtype=torch.float64))
