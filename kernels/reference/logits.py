"""From a row of logits to the distribution that is sampled: penalties, bias, masks, truncation.

Each function works on one row and its parameters, and touches as little of it as it can. A penalty costs time linear in
the history; truncation sorts only the tokens that can survive it. One row at a time also keeps the row in the CPU's
cache and makes its result independent of its neighbours.

The definitions are those of vLLM and Hugging Face transformers, with every tie decided (higher logit first, then lower
id). Rows are numpy arrays: a row needs many small operations, and numpy has less overhead. Not here: the draw itself
(`sampling.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from torch import Tensor

from draftline.kernels.slots import SampleRows, SamplingFeatures, SlotTable

MIN_TEMPERATURE = 1e-5
"""Lower temperatures are greedy: dividing by them would make the noise negligible, and finally overflow."""

_COMMON_SHARE = 1e-4

# For each byte of a mask, the upper bounds of its eight tokens' logits.
_CEILINGS = np.where(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little") != 0, np.inf, -np.inf
).astype(np.float32)

_T = TypeVar("_T", int, float)

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RowParams:
    """One row's parameters, on the host; neutral for features that the step does not use. See `SlotTable`."""

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
    only_allowed: int
    bad_tokens: int
    mask_row: int

    @property
    def has_mask(self) -> bool:
        """Whether some tokens are not allowed."""
        return self.mask_row > 0

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
        bans = self.has_mask or self.only_allowed or self.bad_tokens or self.position < self.min_length
        return bool(bans or self.has_bias or self.is_penalised)

    @property
    def is_truncated(self) -> bool:
        """Whether top-k, top-p or min-p is on."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0


def read_rows(rows: SampleRows, table: SlotTable) -> list[RowParams]:
    """Bring the rows' parameters to the host: one small copy for each column that some row uses."""
    count = rows.slots.numel()

    def column(values: Tensor, feature: SamplingFeatures, neutral: _T) -> list[_T]:
        if not feature & rows.features:
            return [neutral] * count
        column: list[_T] = values[rows.slots].tolist()
        return column

    feature = SamplingFeatures
    has_bias, mask_row = [False] * count, [0] * count
    if feature.LOGIT_BIAS in rows.features:
        has_bias = (table.bias_ids[rows.slots] >= 0).any(dim=-1).tolist()
    if rows.masks is not None:
        mask_row = rows.masks.rows.tolist()
    columns = zip(
        rows.slots.tolist(),
        rows.positions.tolist(),
        column(table.seed, feature.TEMPERATURE, 0),
        column(table.prompt_lens, feature.PENALTIES | feature.BAD_WORDS, 0),
        column(table.min_length, feature.MIN_TOKENS, 0),
        column(table.temperature, feature.TEMPERATURE, 0.0),
        column(table.top_k, feature.TOP_K, 0),
        column(table.top_p, feature.TOP_P, 1.0),
        column(table.min_p, feature.MIN_P, 0.0),
        column(table.repetition_penalty, feature.PENALTIES, 1.0),
        column(table.presence_penalty, feature.PENALTIES, 0.0),
        column(table.frequency_penalty, feature.PENALTIES, 0.0),
        has_bias,
        column(table.only_allowed, feature.ALLOWED_IDS, 0),
        column(table.bad_tokens, feature.BAD_WORDS, 0),
        mask_row,
        strict=True,
    )
    return [RowParams(*values) for values in columns]


def process(logits: Floats, params: RowParams, table: SlotTable, mask: Tensor | None) -> Floats:
    """Penalties, logit bias, min_tokens, bad words, allowed ids and mask, in this order.

    Ids outside the vocabulary, in a history as in a bias or among stop ids, are ignored.

    Args:
        logits: [V], without NaN; left unchanged.
        params: the row's parameters.
        table: the slot table.
        mask: [ceil(V / 32)] int32 of allowed-token bits, or None.

    Returns:
        [V]; tokens that must not be sampled are -inf.
    """
    processed = logits.copy()
    if params.is_penalised:
        _penalise(processed, params, _row(table.tokens, params.slot)[: params.position])
    if params.has_bias:
        ids, values = _row(table.bias_ids, params.slot), _row(table.bias_values, params.slot)
        is_known = (ids >= 0) & (ids < len(logits))
        np.add.at(processed, ids[is_known], values[is_known])
    if params.position < params.min_length:
        processed[_stop_ids(params, table, len(logits))] = -np.inf
    if params.bad_tokens:
        processed[_known(_completing(params, table), len(logits))] = -np.inf
    for allowed in _masks(params, table, mask):
        np.minimum(processed, _ceilings(allowed, len(logits)), out=processed)
    return processed


def fallback(params: RowParams, table: SlotTable, mask: Tensor | None, vocab: int) -> int:
    """The token of a row that has no logit above -inf: the lowest id that is allowed.

    Where no token satisfies all, min_tokens counts no more, and where there is still none, allowed ids do not either.
    Bad words do not count. 0 if the mask allows none.
    """
    choices = [np.ones(vocab, dtype=np.bool_)]
    for allowed in reversed(_masks(params, table, mask)):
        choices.append(choices[-1] & (_ceilings(allowed, vocab) > 0))
    if params.position < params.min_length:
        choices.append(choices[-1].copy())
        choices[-1][_stop_ids(params, table, vocab)] = False
    return next((int(choice.argmax()) for choice in reversed(choices[1:]) if choice.any()), 0)


def survivors(scaled: Floats, best: float, params: RowParams) -> Ids:
    """The tokens that top-k, then top-p, then min-p leave.

    * top-k: the k most likely.
    * top-p: the fewest most likely tokens whose share of what top-k left reaches p (Holtzman et al. 2020): a token
      stays while those before it have less than p. The weights are float32, their sums float64.
    * min-p: tokens whose weight ``exp(scaled - best)`` is at least min_p, the most likely token's weight being 1
      (Nguyen et al. 2024).

    Args:
        scaled: [V], processed logits divided by the temperature.
        best: their maximum, finite.
        params: the row's parameters, with at least one of the three on.

    Returns:
        [N] in no particular order, N >= 1. Tokens of -inf may be among them.
    """
    ids = None
    if 0 < params.top_k < len(scaled):
        kth = len(scaled) - params.top_k
        ids = _most_likely(scaled, params.top_k, np.partition(scaled, kth)[kth])
        scaled = scaled[ids]
    weights = _weights(scaled, best)
    if params.top_p < 1.0:
        kept = _nucleus(scaled, weights, best, params.top_p)
        kept = kept[weights[kept] >= params.min_p]
    else:
        kept = np.flatnonzero(weights >= params.min_p)
    return kept if ids is None else ids[kept]


def _row(column: Tensor, slot: int) -> npt.NDArray[Any]:
    row: npt.NDArray[Any] = column[slot].numpy(force=True)
    return row


def _stop_ids(params: RowParams, table: SlotTable, vocab: int) -> npt.NDArray[np.int32]:
    return _known(_row(table.stop_ids, params.slot), vocab)


def _masks(params: RowParams, table: SlotTable, mask: Tensor | None) -> list[Tensor]:
    """The bits of the tokens that may be sampled: of the allowed ids, and the mask."""
    allowed = [table.allowed[params.slot]] if params.only_allowed else []
    return allowed if mask is None else [*allowed, mask]


def _completing(params: RowParams, table: SlotTable) -> npt.NDArray[np.int32]:
    """The last tokens of the bad words whose other tokens end the output."""
    words = _row(table.word_tokens, params.slot)[: params.bad_tokens]
    prefixes = _row(table.word_prefixes, params.slot)[: params.bad_tokens]
    output = _row(table.tokens, params.slot)[params.prompt_len : params.position]
    ends = np.flatnonzero((prefixes >= 0) & (prefixes <= len(output)))
    back = 1
    while (longer := prefixes[ends] >= back).any():
        ends = ends[~longer | (words[ends - back] == output[-back])]
        back += 1
    completing: npt.NDArray[np.int32] = words[ends]
    return completing


def _known(ids: npt.NDArray[np.int32], vocab: int) -> npt.NDArray[np.int32]:
    return ids[(ids >= 0) & (ids < vocab)]


def _ceilings(mask: Tensor, vocab: int) -> Floats:
    """Infinity for every allowed token and -infinity for the others: [ceil(vocab / 32)] int32 -> [vocab]."""
    little_endian = mask.numpy(force=True).astype("<i4", copy=False)
    return _CEILINGS[little_endian.view(np.uint8)].reshape(-1)[:vocab]


def _penalise(logits: Floats, params: RowParams, history: npt.NDArray[np.int32]) -> None:
    if params.repetition_penalty != 1.0:
        ids = _known(history, len(logits))
        values, penalty = logits[ids], np.float32(params.repetition_penalty)
        # A token that occurs twice is written twice, with the same value.
        logits[ids] = np.where(values > 0, values / penalty, values * penalty)
    if params.presence_penalty != 0.0 or params.frequency_penalty != 0.0:
        ids, counts = np.unique(_known(history[params.prompt_len :], len(logits)), return_counts=True)
        logits[ids] -= np.float32(params.frequency_penalty) * counts.astype(np.float32)
        logits[ids] -= np.float32(params.presence_penalty)


def _most_likely(scaled: Floats, count: int, least: float) -> Ids:
    """The ``count`` most likely of these tokens, ascending, where ``least`` is the last one's value."""
    keep = scaled >= least
    surplus = int(np.count_nonzero(keep)) - count
    equals = np.flatnonzero(scaled == least)
    keep[equals[len(equals) - surplus :]] = False
    return np.flatnonzero(keep)


def _nucleus(scaled: Floats, weights: Floats, best: float, p: float) -> Ids:
    """The tokens that top-p leaves, ascending, sorting only values that can be among theirs.

    The tokens from some weight up hold the nucleus if their mass reaches p. Those of a common share mostly do. If not:
    the tokens below (1 - p) / 2V of the mass are certain to leave more than p to the others.
    """
    total = _total(weights)
    candidates = weights >= _COMMON_SHARE * total
    # The margin is far above the rounding of these sums, so that their order cannot change the result.
    if _total(weights[candidates]) < p * total * (1 + 1e-9):
        candidates = weights >= (1 - p) * total / (2 * len(weights))
    values = np.sort(scaled[candidates])[::-1]
    masses = _weights(values, best).cumsum(dtype=np.float64)
    count = 1 + int(np.count_nonzero(masses[:-1] < p * total))
    return _most_likely(scaled, count, values[count - 1])


def _weights(scaled: Floats, best: float) -> Floats:
    weights: Floats = np.exp(scaled - np.float32(best))
    return weights


def _total(weights: Floats) -> float:
    return float(weights.sum(dtype=np.float64))
