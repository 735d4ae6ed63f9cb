"""Brings the device's slot table up to date with a plan: new sequences' rows, and cache blocks that changed."""

from __future__ import annotations

import torch
from torch import Tensor

from draftline.engine.sequence import Plan, Row, Sequence
from draftline.kernels.slots import MAX_LOGIT_BIAS, MAX_STOP_IDS, SamplingFeatures, SlotTable


def signed_seed(seed: int) -> int:
    """A 64-bit seed's two's complement: the slot table's int64 with the same bits."""
    return seed - 2**64 if seed >= 2**63 else seed


def stop_ids(sequence: Sequence, eos_ids: tuple[int, ...]) -> tuple[int, ...]:
    """The token ids that end this sequence, and that min_tokens therefore bans until then."""
    sampling = sequence.sampling
    return sampling.stop_token_ids if sampling.ignore_eos else (*eos_ids, *sampling.stop_token_ids)


def sampling_features(rows: tuple[Row, ...]) -> SamplingFeatures:
    """What at least one of the rows uses."""
    features = SamplingFeatures.NONE
    for row in rows:
        sampling = row.sequence.sampling
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
        if row.sequence.output_len < sampling.min_tokens:
            features |= SamplingFeatures.MIN_TOKENS
    return features


class SlotWriter:
    """Writes host-side changes into a `SlotTable`, one small copy a field and step."""

    def __init__(self, table: SlotTable, eos_ids: tuple[int, ...]) -> None:
        """``eos_ids`` are the model's end-of-sequence ids."""
        self._table = table
        self._eos_ids = eos_ids
        self._device = table.tokens.device

    def apply(self, plan: Plan) -> None:
        """Fill the slots of the plan's admitted rows, and update the block tables of all of them."""
        admitted = [row for row in plan.rows if row.admitted]
        if admitted:
            self._fill(admitted)
        changes = [(row.slot, index, block) for row in plan.rows for index, block in row.new_blocks]
        if changes:
            slots, indices, blocks = torch.tensor(changes, dtype=torch.int64).to(self._device).unbind(1)
            self._table.block_tables[slots, indices] = blocks.int()

    def _fill(self, rows: list[Row]) -> None:
        table = self._table
        slots = self._ints([row.slot for row in rows], torch.int64)
        params = [row.sequence.sampling for row in rows]
        for row in rows:
            tokens = row.sequence.tokens
            table.tokens[row.slot, : len(tokens)] = self._ints(tokens)
        table.prompt_lens[slots] = self._ints([row.sequence.prompt_len for row in rows])
        table.temperature[slots] = self._floats([p.temperature for p in params])
        table.top_k[slots] = self._ints([p.top_k for p in params])
        table.top_p[slots] = self._floats([p.top_p for p in params])
        table.min_p[slots] = self._floats([p.min_p for p in params])
        table.repetition_penalty[slots] = self._floats([p.repetition_penalty for p in params])
        table.presence_penalty[slots] = self._floats([p.presence_penalty for p in params])
        table.frequency_penalty[slots] = self._floats([p.frequency_penalty for p in params])
        table.seed[slots] = self._ints([signed_seed(row.sequence.seed) for row in rows], torch.int64)
        table.min_length[slots] = self._ints(
            [row.sequence.prompt_len + row.sequence.sampling.min_tokens for row in rows]
        )
        stops = [stop_ids(row.sequence, self._eos_ids) for row in rows]
        table.stop_ids[slots] = self._ints([[*ids, *[-1] * (MAX_STOP_IDS - len(ids))] for ids in stops])
        biased = [row for row in rows if row.sequence.sampling.logit_bias]
        if biased:
            where = self._ints([row.slot for row in biased], torch.int64)
            biases = [row.sequence.sampling.logit_bias for row in biased]
            padding = [MAX_LOGIT_BIAS - len(bias) for bias in biases]
            table.bias_ids[where] = self._ints([[*b, *[-1] * n] for b, n in zip(biases, padding, strict=True)])
            table.bias_values[where] = self._floats(
                [[*b.values(), *[0.0] * n] for b, n in zip(biases, padding, strict=True)]
            )
        unbiased = [row.slot for row in rows if not row.sequence.sampling.logit_bias]
        if unbiased:
            table.bias_ids[self._ints(unbiased, torch.int64)] = -1

    def _ints(self, values: list[int] | list[list[int]], dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.tensor(values, dtype=dtype).to(self._device)

    def _floats(self, values: list[float] | list[list[float]]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32).to(self._device)
