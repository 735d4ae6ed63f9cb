"""The slot table: the device's state of all running sequences.

A sequence holds one slot from admission to finish or preemption. A step's inputs are gathered from here, and its
results are committed here, so that the device can go on to the next step before the host has read the last one.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import torch
from torch import Tensor

from draftline.kernels.limits import MAX_BAD_WORD_TOKENS as MAX_BAD_WORD_TOKENS
from draftline.kernels.limits import MAX_LOGIT_BIAS as MAX_LOGIT_BIAS
from draftline.kernels.limits import MAX_STOP_IDS as MAX_STOP_IDS

_ALIGNMENT = 32
"""Numbers: a field of the slot table begins at a multiple of 128 bytes, as kernels read it."""

INT_SCALARS = ("lengths", "prompt_lens", "top_k", "min_length", "only_allowed", "bad_tokens")
FLOAT_SCALARS = (
    "temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
)  # fmt: skip
"""The fields of a slot table that hold one number a slot."""


class SamplingFeatures(enum.Flag):
    """The features that some sampled row of a step uses: sampling may leave the others out."""

    NONE = 0
    TEMPERATURE = enum.auto()
    TOP_K = enum.auto()
    TOP_P = enum.auto()
    MIN_P = enum.auto()
    PENALTIES = enum.auto()
    LOGIT_BIAS = enum.auto()
    MIN_TOKENS = enum.auto()
    ALLOWED_IDS = enum.auto()
    BAD_WORDS = enum.auto()
    MASK = enum.auto()


@dataclass(frozen=True, slots=True)
class SlotTable:
    """Per-slot state on the device, for S slots.

    Attributes:
        tokens: [S, max_len] int32, known tokens, followed by this step's drafts.
        block_tables: [S, max_blocks] int32, cache blocks in order.
        lengths: [S] int32, known tokens.
        prompt_lens: [S] int32.
        temperature: [S] float32, 0 is greedy.
        top_k: [S] int32, 0 is off.
        top_p: [S] float32, 1 is off.
        min_p: [S] float32, 0 is off.
        repetition_penalty: [S] float32, 1 is off; over prompt and output.
        presence_penalty: [S] float32, 0 is off; over the output.
        frequency_penalty: [S] float32, 0 is off; over the output.
        seed: [S] int64.
        min_length: [S] int32, before this position no stop id may be sampled.
        only_allowed: [S] int32, 1 where no token but those of ``allowed`` may be sampled.
        bad_tokens: [S] int32, the entries of ``word_tokens`` that count.
        stop_ids: [S, MAX_STOP_IDS] int32, padded with -1.
        bias_ids: [S, MAX_LOGIT_BIAS] int32, padded with -1.
        bias_values: [S, MAX_LOGIT_BIAS] float32.
        allowed: [S, ceil(vocab / 32)] int32, bits of the allowed tokens, as in `Masks`.
        word_tokens: [S, MAX_BAD_WORD_TOKENS] int32, the tokens of all bad words, one word after another.
        word_prefixes: [S, MAX_BAD_WORD_TOKENS] int32, for a word's last token the number of those before it; -1 for
            others.
        scalars: [12, S] int32, the storage of INT_SCALARS and (bit by bit) FLOAT_SCALARS.
        words: [N] int32, the storage of all fields, so that one copy writes to any of them.
    """

    tokens: Tensor
    block_tables: Tensor
    lengths: Tensor
    prompt_lens: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    repetition_penalty: Tensor
    presence_penalty: Tensor
    frequency_penalty: Tensor
    seed: Tensor
    min_length: Tensor
    stop_ids: Tensor
    bias_ids: Tensor
    bias_values: Tensor
    only_allowed: Tensor
    allowed: Tensor
    bad_tokens: Tensor
    word_tokens: Tensor
    word_prefixes: Tensor
    scalars: Tensor
    words: Tensor

    @staticmethod
    def allocate(num_slots: int, max_len: int, max_blocks: int, device: torch.device, vocab: int = 0) -> SlotTable:
        """A table of ``num_slots`` empty slots for sequences of up to ``max_len`` tokens in ``max_blocks`` blocks.

        ``vocab`` is the size of the vocabulary; without it, `SamplingFeatures.ALLOWED_IDS` cannot be used.
        """
        shapes = {
            "tokens": (num_slots, max_len),
            "block_tables": (num_slots, max_blocks),
            "seed": (num_slots, 2),
            "stop_ids": (num_slots, MAX_STOP_IDS),
            "bias_ids": (num_slots, MAX_LOGIT_BIAS),
            "bias_values": (num_slots, MAX_LOGIT_BIAS),
            "allowed": (num_slots, -(-vocab // 32)),
            "word_tokens": (num_slots, MAX_BAD_WORD_TOKENS),
            "word_prefixes": (num_slots, MAX_BAD_WORD_TOKENS),
            "scalars": (len(INT_SCALARS) + len(FLOAT_SCALARS), num_slots),
        }
        rooms = [-(-rows * columns // _ALIGNMENT) * _ALIGNMENT for rows, columns in shapes.values()]
        words = torch.zeros(sum(rooms), dtype=torch.int32, device=device)
        fields = {
            name: part[: rows * columns].view(rows, columns)
            for (name, (rows, columns)), part in zip(shapes.items(), words.split(rooms), strict=True)
        }
        for name in ("stop_ids", "bias_ids", "word_prefixes"):
            fields[name].fill_(-1)
        fields["seed"] = fields["seed"].view(torch.int64).view(num_slots)
        fields["bias_values"] = fields["bias_values"].view(torch.float32)
        whole = dict(zip(INT_SCALARS, fields["scalars"], strict=False))
        real = dict(zip(FLOAT_SCALARS, fields["scalars"][len(INT_SCALARS) :].view(torch.float32), strict=True))
        for name in ("top_p", "repetition_penalty"):
            real[name].fill_(1.0)
        return SlotTable(words=words, **fields, **whole, **real)


@dataclass(frozen=True, slots=True)
class Masks:
    """The tokens that rows of logits may decide.

    Attributes:
        words: [N, ceil(vocab / 32)] int32 of allowed-token bits (token t is bit ``t % 32`` of word ``t // 32``). The
            first row allows everything.
        rows: [S] int32, the row of ``words`` for each row of logits.
    """

    words: Tensor
    rows: Tensor


@dataclass(frozen=True, slots=True)
class SampleRows:
    """The token that each row of a [S, vocab] logits tensor decides.

    Attributes:
        slots: [S] int64, the sequence's slot.
        positions: [S] int64, the position of the token being sampled (so ``tokens[slot, :position]`` precede it).
        features: the features that any of the rows uses.
        masks: the rows' allowed tokens; None allows everything.
    """

    slots: Tensor
    positions: Tensor
    features: SamplingFeatures
    masks: Masks | None
