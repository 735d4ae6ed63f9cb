"""``SlotWriter``: brings the device's slot table up to date with a plan, that is new sequences and changed cache blocks."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

import numpy as np

from draftline.engine.params import SamplingParams
from draftline.engine.request.sequence import Plan, Row, Sequence
from draftline.engine.runner.transfer import upload
from draftline.kernels.slots import (
    FLOAT_SCALARS,
    INT_SCALARS,
    MAX_BAD_WORD_TOKENS,
    MAX_LOGIT_BIAS,
    MAX_STOP_IDS,
    SamplingFeatures,
    SlotTable,
)


def signed_seed(seed: int) -> int:
    """A 64-bit seed's two's complement: the slot table's int64 with the same bits."""
    return seed - 2**64 if seed >= 2**63 else seed


def stop_ids(sequence: Sequence, eos_ids: tuple[int, ...]) -> tuple[int, ...]:
    """The token ids that end this sequence, and that min_tokens therefore bans until then."""
    sampling = sequence.sampling
    return tuple(sampling.stop_token_ids) if sampling.ignore_eos else (*eos_ids, *sampling.stop_token_ids)


def sampling_features(sampling: SamplingParams) -> SamplingFeatures:
    """The features that a request uses. MIN_TOKENS only counts until its output is long enough."""
    features = SamplingFeatures.NONE
    if sampling.temperature > 0:
        features |= SamplingFeatures.TEMPERATURE
        if sampling.top_k > 0:
            features |= SamplingFeatures.TOP_K
        if sampling.top_p < 1:
            features |= SamplingFeatures.TOP_P
        if sampling.min_p > 0:
            features |= SamplingFeatures.MIN_P
    if sampling.repetition_penalty != 1 or sampling.presence_penalty != 0 or sampling.frequency_penalty != 0:
        features |= SamplingFeatures.PENALTIES
    if sampling.logit_bias:
        features |= SamplingFeatures.LOGIT_BIAS
    if sampling.min_tokens > 0:
        features |= SamplingFeatures.MIN_TOKENS
    if sampling.allowed_token_ids is not None:
        features |= SamplingFeatures.ALLOWED_IDS
    if sampling.bad_words:
        features |= SamplingFeatures.BAD_WORDS
    return features


class SlotWriter:
    """Writes host-side changes into a `SlotTable`, in few transfers and without waiting for the device."""

    def __init__(self, table: SlotTable, eos_ids: tuple[int, ...]) -> None:
        """``eos_ids`` are the model's end-of-sequence ids."""
        self._table = table
        self._eos_ids = eos_ids
        self._device = table.tokens.device
        self._features = [0] * len(table.tokens)  # of each slot, as bits: flags take microseconds to unite

    def apply(self, plan: Plan) -> SamplingFeatures:
        """Fill the slots of the plan's admitted rows, and update the block tables.

        Returns:
            The sampling features that at least one of the plan's rows uses in this step.
        """
        if plan.admitted:
            self._fill(plan.admitted)
        if plan.new_blocks:
            slots, indices, blocks = upload(np.array(plan.new_blocks, np.int64).T.copy(), self._device)
            self._table.block_tables[slots, indices] = blocks.int()
        return self._features_of(plan.rows)

    def _features_of(self, rows: tuple[Row, ...]) -> SamplingFeatures:
        used = SamplingFeatures(reduce(or_, {self._features[row.slot] for row in rows if row.samples}, 0))
        if SamplingFeatures.MIN_TOKENS in used and not any(_bans_stops(row) for row in rows if row.samples):
            used ^= SamplingFeatures.MIN_TOKENS
        return used

    def _fill(self, rows: tuple[Row, ...]) -> None:
        table = self._table
        for row in rows:
            features = sampling_features(row.sequence.sampling)
            if row.sequence.constraint is not None:
                features |= SamplingFeatures.MASK
            self._features[row.slot] = features.value
        sequences = [row.sequence for row in rows]
        params = [sequence.sampling for sequence in sequences]
        slots = upload(np.array([row.slot for row in rows], np.int64), self._device)
        bad_words = [_BadWords.of(sequence) for sequence in sequences]
        whole: dict[str, list[int]] = {
            "lengths": [len(sequence.tokens) for sequence in sequences],
            "prompt_lens": [sequence.prompt_len for sequence in sequences],
            "top_k": [p.top_k for p in params],
            "min_length": [sequence.prompt_len + p.min_tokens for sequence, p in zip(sequences, params, strict=True)],
            "only_allowed": [p.allowed_token_ids is not None for p in params],
            "bad_tokens": [len(words.tokens) for words in bad_words],
        }
        scalars = np.array([whole[field] for field in INT_SCALARS], np.int32)
        real = np.array([[getattr(p, field) for p in params] for field in FLOAT_SCALARS], np.float32)
        table.scalars[:, slots] = upload(np.concatenate((scalars, real.view(np.int32))), self._device)
        seeds = np.array([signed_seed(sequence.seed) for sequence in sequences], np.int64)
        table.seed[slots] = upload(seeds, self._device)
        stops = [stop_ids(sequence, self._eos_ids) for sequence in sequences]
        table.stop_ids[slots] = upload(_padded(stops, MAX_STOP_IDS, -1, np.int32), self._device)
        biases = [p.logit_bias or {} for p in params]
        if any(biases):
            ids, values = list(map(tuple, biases)), [tuple(bias.values()) for bias in biases]
            table.bias_ids[slots] = upload(_padded(ids, MAX_LOGIT_BIAS, -1, np.int32), self._device)
            table.bias_values[slots] = upload(_padded(values, MAX_LOGIT_BIAS, 0, np.float32), self._device)
        else:
            table.bias_ids.index_fill_(0, slots, -1)
        if any(whole["only_allowed"]):
            allowed = np.stack([_bits(p.allowed_token_ids or (), table.allowed.shape[1]) for p in params])
            table.allowed[slots] = upload(allowed, self._device)
        if any(whole["bad_tokens"]):
            width = MAX_BAD_WORD_TOKENS
            tokens, prefixes = zip(*((words.tokens, words.prefixes) for words in bad_words), strict=True)
            table.word_tokens[slots] = upload(_padded(tokens, width, -1, np.int32), self._device)
            table.word_prefixes[slots] = upload(_padded(prefixes, width, -1, np.int32), self._device)
        known = upload(np.array([t for sequence in sequences for t in sequence.tokens], np.int32), self._device)
        start = 0
        for row in rows:
            length = len(row.sequence.tokens)
            table.tokens[row.slot, :length] = known[start : start + length]
            start += length


def _bans_stops(row: Row) -> bool:
    """Whether the row's sequence may be shorter than its min_tokens."""
    # By what the host knows: the device may know more.
    return row.sequence.output_len < row.sequence.sampling.min_tokens


@dataclass(frozen=True, slots=True)
class _BadWords:
    """A sequence's bad words as `SlotTable` has them."""

    tokens: tuple[int, ...]
    prefixes: tuple[int, ...]

    @staticmethod
    def of(sequence: Sequence) -> _BadWords:
        words = sequence.bad_words
        return _BadWords(
            tuple(token for word in words for token in word),
            tuple(prefix for word in words for prefix in (*[-1] * (len(word) - 1), len(word) - 1)),
        )


def _bits(ids: Iterable[int], words: int) -> np.ndarray:
    """[words] int32 with the bits of these ids."""
    bits = np.zeros(words * 32, np.uint8)
    bits[list(ids)] = 1
    return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32)


def _padded(lists: Seq[tuple[Any, ...]], width: int, filler: float, dtype: type[np.generic]) -> np.ndarray:
    """[len(lists), width], each list followed by ``filler``."""
    array = np.full((len(lists), width), filler, dtype)
    for row, values in zip(array, lists, strict=True):
        row[: len(values)] = values
    return array
