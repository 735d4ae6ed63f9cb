"""Sequences packed into one row of tokens, and attention within each sequence.

Projections, norms and the loss run on the packed tokens, without padding. Attention runs on [sequences, longest]: for
that shape every version of torch has a fused causal attention with gradients.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from draftline.spec.train_draft.samples import Sample

_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Without cuDNN's, which torch prefers on some GPUs: it plans for every new shape, and every batch has a new shape."""


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """T tokens of B sequences, one after another.

    Attributes:
        tokens: [T] token ids.
        positions: [T], each token's position in its sequence.
        padded: [T], each token's index in [B * longest], where each sequence has a row.
        count: B.
        longest: the number of tokens of the longest sequence.
        predicting: [P], the indices of tokens that an answer token follows: of each sequence the last token of the
            prompt, and all tokens of the answer but the last.
    """

    tokens: Tensor
    positions: Tensor
    padded: Tensor
    count: int
    longest: int
    predicting: Tensor

    @property
    def answers(self) -> Tensor:
        """[P], the answer token after each of ``predicting``."""
        return self.tokens[self.predicting + 1]

    def rows(self, x: Tensor) -> Tensor:
        """[T, ...] -> [B, longest, ...], zero where a sequence is shorter."""
        rows = x.new_zeros(self.count * self.longest, *x.shape[1:]).index_copy(0, self.padded, x)
        return rows.view(self.count, self.longest, *x.shape[1:])


def pack(samples: Sequence[Sample], device: torch.device) -> Packed:
    """Pack one or more samples. Each has a prompt and an answer of at least one token."""
    lengths = np.array([len(s.tokens) for s in samples])
    starts = np.cumsum(lengths) - lengths
    sequences = np.repeat(np.arange(len(samples)), lengths)
    positions = np.arange(lengths.sum()) - starts[sequences]
    prompt_lens = np.array([s.prompt_len for s in samples])
    (predicting,) = np.nonzero((positions >= (prompt_lens - 1)[sequences]) & (positions < (lengths - 1)[sequences]))
    longest = int(lengths.max())
    arrays = [np.concatenate([s.tokens for s in samples]), positions, sequences * longest + positions, predicting]
    tokens, position_ids, padded, indices = (torch.from_numpy(a.astype(np.int64)).to(device) for a in arrays)
    return Packed(tokens, position_ids, padded, len(samples), longest, indices)


def attention(query: Tensor, key: Tensor, value: Tensor, packed: Packed, window: int | None) -> Tensor:
    """Causal attention within each sequence.

    Args:
        query: [T, heads, D].
        key: [T, kv_heads, D].
        value: [T, kv_heads, D].
        packed: the sequences of the tokens.
        window: the number of tokens that a token sees, itself included; None for all before it.

    Returns:
        [T, heads, D].
    """
    mask = None
    if window is not None and window < packed.longest:
        positions = torch.arange(packed.longest, device=query.device)
        back = positions[:, None] - positions
        mask = (back >= 0) & (back < window)
    with sdpa_kernel(_KERNELS):
        attended = F.scaled_dot_product_attention(
            packed.rows(query).transpose(1, 2),
            packed.rows(key).transpose(1, 2),
            packed.rows(value).transpose(1, 2),
            mask,
            is_causal=mask is None,
            enable_gqa=query.shape[1] != key.shape[1],
        )
    rows: Tensor = attended.transpose(1, 2).flatten(0, 1)
    return rows.index_select(0, packed.padded)


def batches(samples: Sequence[Sample], tokens: int, rng: random.Random) -> Iterator[list[Sample]]:
    """Every sample once, in batches of samples of similar length. A sample longer than ``tokens`` is its own batch.

    The batches come in random order, and a batch has a random part of the samples of its length. Attention and the
    steps of a head run on [sequences, longest]: in batches of any lengths most of that would be padding.

    Args:
        samples: any number of them.
        tokens: the most tokens of a batch, ``longest`` times the sequences.
        rng: the source of the order.
    """
    shuffled = rng.sample(range(len(samples)), len(samples))
    by_length = sorted(shuffled, key=lambda index: len(samples[index].tokens))
    found: list[list[Sample]] = []
    for index in by_length:
        sample = samples[index]
        if not found or (len(found[-1]) + 1) * len(sample.tokens) > tokens:
            found.append([])
        found[-1].append(sample)
    rng.shuffle(found)
    yield from found
