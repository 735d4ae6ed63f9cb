"""Sequences packed into one row of tokens, and the attention that never looks from one into another.

Projections, norms and the loss run on the packed tokens, without padding; attention alone runs on [sequences, longest],
since every torch has a fused causal attention with gradients for that.
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
"""Not cuDNN's, which torch prefers on some GPUs: it plans anew for every shape, and every batch has another."""


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """T tokens of B sequences, one after another.

    Attributes:
        tokens: [T] ids.
        positions: [T] each token's place in its sequence.
        places: [T] its place in [B * longest], where each sequence has a row.
        count: B.
        longest: tokens of the longest sequence.
        predicting: [P] the tokens after which the target wrote one: of each sequence the last of the prompt, and all of
            the answer but its last.
    """

    tokens: Tensor
    positions: Tensor
    places: Tensor
    count: int
    longest: int
    predicting: Tensor

    @property
    def answers(self) -> Tensor:
        """[P] what the target wrote after each of ``predicting``."""
        return self.tokens[self.predicting + 1]


def pack(samples: Sequence[Sample], device: torch.device) -> Packed:
    """Pack samples, at least one, each with a prompt and an answer of one token or more."""
    lengths = np.array([len(s.tokens) for s in samples])
    starts = np.cumsum(lengths) - lengths
    sequences = np.repeat(np.arange(len(samples)), lengths)
    positions = np.arange(lengths.sum()) - starts[sequences]
    prompt_lens = np.array([s.prompt_len for s in samples])
    (predicting,) = np.nonzero((positions >= (prompt_lens - 1)[sequences]) & (positions < (lengths - 1)[sequences]))
    longest = int(lengths.max())
    arrays = [np.concatenate([s.tokens for s in samples]), positions, sequences * longest + positions, predicting]
    tokens, at, places, wanted = (torch.from_numpy(a.astype(np.int64)).to(device) for a in arrays)
    return Packed(tokens, at, places, len(samples), longest, wanted)


def attention(query: Tensor, key: Tensor, value: Tensor, packed: Packed, window: int | None) -> Tensor:
    """Causal attention within each sequence.

    Args:
        query: [T, heads, D].
        key: [T, kv_heads, D].
        value: [T, kv_heads, D].
        packed: which token is whose.
        window: how many tokens back a token sees, itself included, or None for all.

    Returns:
        [T, heads, D].
    """

    def unpacked(x: Tensor) -> Tensor:
        padded = x.new_zeros(packed.count * packed.longest, *x.shape[1:]).index_copy(0, packed.places, x)
        return padded.view(packed.count, packed.longest, *x.shape[1:]).transpose(1, 2)

    mask = None
    if window is not None and window < packed.longest:
        places = torch.arange(packed.longest, device=query.device)
        back = places[:, None] - places
        mask = (back >= 0) & (back < window)
    with sdpa_kernel(_KERNELS):
        attended = F.scaled_dot_product_attention(
            unpacked(query),
            unpacked(key),
            unpacked(value),
            mask,
            is_causal=mask is None,
            enable_gqa=query.shape[1] != key.shape[1],
        )
    rows: Tensor = attended.transpose(1, 2).flatten(0, 1)
    return rows.index_select(0, packed.places)


def batches(samples: Sequence[Sample], tokens: int, rng: random.Random) -> Iterator[list[Sample]]:
    """Every sample once, in random order, in batches of at most ``tokens`` tokens (or a single longer sample)."""
    batch: list[Sample] = []
    room = tokens
    for index in rng.sample(range(len(samples)), len(samples)):
        sample = samples[index]
        if batch and len(sample.tokens) > room:
            yield batch
            batch, room = [], tokens
        batch.append(sample)
        room -= len(sample.tokens)
    if batch:
        yield batch
