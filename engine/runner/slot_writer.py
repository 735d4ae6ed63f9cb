"""``SlotWriter``: brings the device's slot table up to date with a plan: new sequences, changed cache blocks."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, fields
from functools import reduce
from operator import or_

import numpy as np
import torch
from torch import Tensor

from draftline.engine.params import SamplingParams
from draftline.engine.request.sequence import Plan, Row, Sequence
from draftline.engine.runner.capture import Recorder, WriteGraph
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


STEP_WRITES = 128
"""Words that the graph of a whole step writes itself: the blocks of most steps. A power of two."""

_FEW = 4096
"""Words that a graph of its own writes at once: new sequences of some thousand tokens, too. Operations would take the
host several times as long."""

_LONG = 64
"""Values of a run from which on arrays are the sooner way to write it."""


@dataclass(slots=True)
class TableWrites:
    """The int32 to write to a slot table's storage, and their offsets in it; no offset twice.

    Attributes:
        offsets: of single writes.
        values: theirs.
        runs: the first offsets of long runs, such as prompts, with their values.
    """

    offsets: list[int] = field(default_factory=list)
    values: list[int] = field(default_factory=list)
    runs: list[tuple[int, Seq[int]]] = field(default_factory=list)

    def __len__(self) -> int:
        """The number of writes."""
        return len(self.offsets) + sum([len(values) for _, values in self.runs])

    def add(self, offsets: Iterable[int], values: Iterable[int]) -> None:
        """Write as many values as there are offsets."""
        self.offsets += offsets
        self.values += values

    def add_run(self, start: int, values: Seq[int]) -> None:
        """Write values to the offsets from ``start`` on."""
        if len(values) < _LONG:
            self.add(range(start, start + len(values)), values)
        else:
            self.runs.append((start, values))

    def fill(self, message: np.ndarray, size: int) -> np.ndarray:
        """Return an int64 array for ``size`` writes: their number, their offsets and, as pairs, their values."""
        message[0] = len(self)
        if not message[0]:
            return message
        offsets, written = message[1 : 1 + size], message[1 + size :].view(np.int32)
        end = len(self.offsets)
        offsets[:end], written[:end] = self.offsets, self.values
        for start, values in self.runs:
            begin, end = end, end + len(values)
            offsets[begin:end], written[begin:end] = np.arange(start, start + len(values)), values
        return message


NO_WRITES = TableWrites()


def write_words(size: int) -> int:
    """How many int64 such a message takes."""
    return 1 + size + (size + 1) // 2


def _write(message: Tensor, size: int, storage: Tensor) -> None:
    """Carry out all ``size`` writes of a message on the device."""
    storage.index_copy_(0, message[1 : 1 + size], message[1 + size :].view(torch.int32)[:size])


class SlotWriter:
    """Writes host-side changes into a `SlotTable`, in one transfer a step and without waiting for the device."""

    def __init__(self, table: SlotTable, eos_ids: tuple[int, ...], recorder: Recorder | None = None) -> None:
        """Create a writer for an empty table.

        Args:
            table: the table.
            eos_ids: the model's end-of-sequence ids.
            recorder: captures a graph that writes; without it, operations do.
        """
        self._table = table
        self._eos_ids = eos_ids
        self._graph = None if recorder is None else WriteGraph(write_words(_FEW), table.words, recorder)
        self._features = [0] * len(table.tokens)  # of each slot, as bits: flags take microseconds to unite
        # Of fields that are padded with -1: how many entries of each slot any sequence has had. Those of the last one
        # would not be enough: if its step has failed, it may not have been written.
        self._filled = {"stop_ids": [0] * len(table.tokens), "bias_ids": [0] * len(table.tokens)}
        # The offset and stride of each field.
        self._fields = {one.name: _offset_and_stride(getattr(table, one.name)) for one in fields(table)}

    def collect(self, plan: Plan) -> TableWrites:
        """What to write for a plan: the slots of its admitted rows, and the changes of block tables.

        Unless the step itself does, `send` must write it before anything reads the table.
        """
        writes = TableWrites()
        for row in plan.admitted:
            self._fill(row, writes)
        if plan.new_blocks:
            offset, stride = self._fields["block_tables"]
            writes.add(
                [offset + slot * stride + index for slot, index, _ in plan.new_blocks],
                [block for _, _, block in plan.new_blocks],
            )
        return writes

    def send(self, writes: TableWrites) -> None:
        """Write to the table, in the device's order."""
        storage, count = self._table.words, len(writes)
        if not count:
            return
        if self._graph is not None and count <= _FEW:
            self._graph.launch(lambda message: writes.fill(message, _FEW))
        else:
            message = writes.fill(np.empty(write_words(count), np.int64), count)
            _write(upload(message, storage.device), count, storage)

    def features(self, rows: tuple[Row, ...]) -> SamplingFeatures:
        """The sampling features that at least one of the rows uses in this step."""
        used = SamplingFeatures(reduce(or_, {self._features[row.slot] for row in rows if row.samples}, 0))
        if SamplingFeatures.MIN_TOKENS in used and not any(_bans_stops(row) for row in rows if row.samples):
            used ^= SamplingFeatures.MIN_TOKENS
        return used

    def _fill(self, row: Row, writes: TableWrites) -> None:
        slot, sequence = row.slot, row.sequence
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
        offset, stride = self._fields["scalars"]
        scalars = [whole[name] for name in INT_SCALARS]
        scalars += _bits_of(np.array([getattr(params, name) for name in FLOAT_SCALARS], np.float32))
        writes.add(range(offset + slot, offset + slot + stride * len(scalars), stride), scalars)

        def write(name: str, values: Seq[int]) -> None:
            offset, stride = self._fields[name]
            writes.add_run(offset + slot * stride, values)

        write("tokens", sequence.tokens)
        write("seed", _bits_of(np.array([signed_seed(sequence.seed)], np.int64)))
        bias = params.logit_bias or {}
        for name, ids in (("stop_ids", stop_ids(sequence, self._eos_ids)), ("bias_ids", tuple(bias))):
            filled = self._filled[name]
            filled[slot] = max(filled[slot], len(ids))
            write(name, (*ids, *[-1] * (filled[slot] - len(ids))))
        if bias:
            write("bias_values", _bits_of(np.array(list(bias.values()), np.float32)))
        if params.allowed_token_ids is not None:
            write("allowed", _bit_set(params.allowed_token_ids, self._table.allowed.shape[1]))
        if bad_words.tokens:
            write("word_tokens", bad_words.tokens)
            write("word_prefixes", bad_words.prefixes)


def _offset_and_stride(field: Tensor) -> tuple[int, int]:
    """A field's offset in a slot table's storage, and the stride of its rows, in int32."""
    words = field.element_size() // 4
    return int(field.storage_offset()) * words, field.stride(0) * words


def _bits_of(values: np.ndarray) -> list[int]:
    """Numbers of 32 bits as int32 with the same bits, or those of 64 bits as two each."""
    bits: list[int] = values.view(np.int32).tolist()
    return bits


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


def _bit_set(ids: Iterable[int], words: int) -> list[int]:
    """[words] int32 with the bits of these ids."""
    bits = np.zeros(words * 32, np.uint8)
    bits[list(ids)] = 1
    return _bits_of(np.packbits(bits, bitorder="little"))
