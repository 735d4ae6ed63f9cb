"""``SlotWriter``: brings the device's slot table up to date with a plan, that is new sequences and changed cache blocks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from operator import or_

import numpy as np
import torch
from torch import Tensor

from draftline.engine.params import SamplingParams
from draftline.engine.request.sequence import Plan, Row, Sequence
from draftline.engine.runner.transfer import upload
from draftline.kernels.slots import (
    FLOAT_SCALARS,
    INT_SCALARS,
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


class _Writes:
    """Numbers and their places in a slot table's storage, for one transfer."""

    def __init__(self) -> None:
        """Nothing to write."""
        self._places: list[np.ndarray] = []
        self._values: list[np.ndarray] = []

    def add(self, places: np.ndarray, values: np.ndarray) -> None:
        """Write as many int32 as there are places; no place twice."""
        self._places.append(places)
        self._values.append(values)

    def add_run(self, start: int, values: np.ndarray) -> None:
        """Write numbers of 32 bits, or of 64 bits as two, to the places from ``start`` on."""
        words = values.view(np.int32)
        self.add(np.arange(start, start + len(words)), words)

    def send(self, storage: Tensor) -> None:
        """Write all, if there is anything."""
        count = sum(map(len, self._places))
        if not count:
            return
        message = np.empty(count + (count + 1) // 2, np.int64)
        np.concatenate(self._places, out=message[:count])
        np.concatenate(self._values, out=message[count:].view(np.int32)[:count])
        arrived = upload(message, storage.device)
        storage.index_copy_(0, arrived[:count], arrived[count:].view(torch.int32)[:count])


class SlotWriter:
    """Writes host-side changes into a `SlotTable`, in one transfer a step and without waiting for the device."""

    def __init__(self, table: SlotTable, eos_ids: tuple[int, ...]) -> None:
        """``eos_ids`` are the model's end-of-sequence ids."""
        self._table = table
        self._eos_ids = eos_ids
        self._features = [0] * len(table.tokens)  # of each slot, as bits: flags take microseconds to unite
        # Of fields that are padded with -1: how many entries of each slot are not.
        self._filled = {"stop_ids": [0] * len(table.tokens), "bias_ids": [0] * len(table.tokens)}

    def apply(self, plan: Plan) -> SamplingFeatures:
        """Fill the slots of the plan's admitted rows, and update the block tables.

        Returns:
            The sampling features that at least one of the plan's rows uses in this step.
        """
        writes = _Writes()
        for row in plan.admitted:
            self._fill(row, writes)
        if plan.new_blocks:
            slots, indices, blocks = np.array(plan.new_blocks, np.int64).T
            start, width = _place(self._table.block_tables)
            writes.add(start + slots * width + indices, blocks)
        writes.send(self._table.words)
        return self._features_of(plan.rows)

    def _features_of(self, rows: tuple[Row, ...]) -> SamplingFeatures:
        used = SamplingFeatures(reduce(or_, {self._features[row.slot] for row in rows if row.samples}, 0))
        if SamplingFeatures.MIN_TOKENS in used and not any(_bans_stops(row) for row in rows if row.samples):
            used ^= SamplingFeatures.MIN_TOKENS
        return used

    def _fill(self, row: Row, writes: _Writes) -> None:
        table, slot, sequence = self._table, row.slot, row.sequence
        params = sequence.sampling
        features = sampling_features(params)
        if sequence.constraint is not None:
            features |= SamplingFeatures.MASK
        self._features[slot] = features.value
        bad_words = _BadWords.of(sequence)
        whole: dict[str, int] = {
            "lengths": len(sequence.tokens),
            "prompt_lens": sequence.prompt_len,
            "top_k": params.top_k,
            "min_length": sequence.prompt_len + params.min_tokens,
            "only_allowed": params.allowed_token_ids is not None,
            "bad_tokens": len(bad_words.tokens),
        }
        real = np.array([getattr(params, field) for field in FLOAT_SCALARS], np.float32)
        scalars = np.concatenate((np.array([whole[field] for field in INT_SCALARS], np.int32), real.view(np.int32)))
        start, width = _place(table.scalars)
        writes.add(start + slot + width * np.arange(len(scalars)), scalars)

        def write(field: Tensor, values: np.ndarray) -> None:
            start, width = _place(field)
            writes.add_run(start + slot * width, values)

        write(table.tokens, np.array(sequence.tokens, np.int32))
        write(table.seed, np.array([signed_seed(sequence.seed)], np.int64))
        bias = params.logit_bias or {}
        for name, ids in (("stop_ids", stop_ids(sequence, self._eos_ids)), ("bias_ids", tuple(bias))):
            filled = self._filled[name]
            write(getattr(table, name), _padded(ids, filled[slot]))
            filled[slot] = len(ids)
        if bias:
            write(table.bias_values, np.array(list(bias.values()), np.float32))
        if params.allowed_token_ids is not None:
            write(table.allowed, _bits(params.allowed_token_ids, table.allowed.shape[1]))
        if bad_words.tokens:
            write(table.word_tokens, np.array(bad_words.tokens, np.int32))
            write(table.word_prefixes, np.array(bad_words.prefixes, np.int32))


def _place(field: Tensor) -> tuple[int, int]:
    """Where a field begins in a slot table's storage, and how far its rows are apart, in int32."""
    words = field.element_size() // 4
    return int(field.storage_offset()) * words, field.stride(0) * words


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


def _padded(values: tuple[int, ...], width: int) -> np.ndarray:
    """The values, followed by -1 up to ``width`` of them."""
    return np.array((*values, *[-1] * (width - len(values))), np.int32)
