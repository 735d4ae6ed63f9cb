"""Counter-based random numbers: the noise that makes sampling a pure function of seed, position and token.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) turns a 128-bit counter and a
64-bit key into four 32-bit words; nothing is stored and no draw depends on another. The noise of a token is

* counter ``(token // 4, position mod 2**32, 0, 0)`` and key ``(seed mod 2**32, seed // 2**32)``, the seed read as
  unsigned 64-bit; the token's word is output ``token % 4``;
* ``u = (2 * (word >> 9) + 1) * 2**-24``: every step is exact in float32, and u is never 0 or 1 (24 bits plus a half
  would not be: the largest rounds to 1, whose noise is infinite, at one token in 2**24);
* ``gumbel = -log(-log(u))``, float32, between `GUMBEL_MIN` and `GUMBEL_MAX`.

The grid of u has a consequence that the Gumbel-max trick inherits: a token of probability p is drawn with probability
``p * h / sinh(h)``, ``h = 2**-24 / p``, up to second order. That is p within 0.1% for p > 1e-6, and less than p for
tokens rarer than 2**-24.

This module is not a generator object: there is no state, and nothing here knows of logits.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

GUMBEL_MIN = -2.8116
"""Just under the least noise: ``-log(24 * log(2))``."""

GUMBEL_MAX = 16.6356
"""Just over the most noise: ``-log(-log(1 - 2**-24))``."""

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW = 0xFFFFFFFF

_SCALAR_BLOCKS = 32
"""Up to so many blocks Python's integers beat the hundred tensor operations of Philox."""


def philox_4x32_10(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """One block of Philox4x32-10, on Python integers: four 32-bit words from a counter and a key of 32-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        even, odd = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (odd >> 32) ^ c1 ^ k0, odd & _LOW, (even >> 32) ^ c3 ^ k1, even & _LOW
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return c0, c1, c2, c3


def philox_4x32_10_tensors(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox4x32-10, elementwise.

    Args:
        counter: four int64 tensors of values below 2**32; the first has the result's shape, the others broadcast to it.
        key: two such tensors, broadcast likewise.

    Returns:
        Four int64 tensors of values below 2**32.
    """
    c0, c1, c2, c3 = counter
    # Constants as tensors without axes cost less to pass than Python numbers do; they need not be on c0's device.
    multiplier0, multiplier1 = torch.tensor(_MULTIPLIERS)
    low, half = torch.tensor(_LOW), torch.tensor(32)
    for index, (k0, k1) in enumerate(
        zip(_key_schedule(key[0], _WEYL[0]), _key_schedule(key[1], _WEYL[1]), strict=True)
    ):
        even, odd = c0 * multiplier0, c2 * multiplier1
        # Only c0 and c2 are multiplied, so only they must be below 2**32; what c1, c3 and the keys carry above falls at
        # the next mask, with the sign bits that >> shifts in.
        if index < 2:
            c0, c2 = ((odd >> half) ^ c1 ^ k0) & low, ((even >> half) ^ c3 ^ k1) & low
        else:  # by now everything has the full shape
            c0 = (odd >> half).bitwise_xor_(c1).bitwise_xor_(k0).bitwise_and_(low)
            c2 = (even >> half).bitwise_xor_(c3).bitwise_xor_(k1).bitwise_and_(low)
        c1, c3 = odd, even
    return c0, c1.bitwise_and_(low), c2, c3.bitwise_and_(low)


def _key_schedule(key: Tensor, weyl: int) -> tuple[Tensor, ...]:
    steps = torch.arange(0, _ROUNDS * weyl, weyl, device=key.device)
    return (key + steps.view(_ROUNDS, *(1,) * key.ndim)).unbind(0)


def token_gumbel(seed: int, position: int, token: int) -> float:
    """The noise of one token in double precision: within a few float32 roundings of what `block_gumbel` gives."""
    words = philox_4x32_10((token // 4, position & _LOW, 0, 0), (seed & _LOW, (seed >> 32) & _LOW))
    return -math.log(-math.log((2 * (words[token % 4] >> 9) + 1) * 2.0**-24))


def block_gumbel(blocks: Tensor, positions: Tensor, seeds: Tensor) -> Tensor:
    """The noise of blocks of four tokens.

    Args:
        blocks: [N] int64, token ids divided by 4.
        positions: [N] or [] int64, the position that each block's tokens may take.
        seeds: [N] or [] int64.

    Returns:
        [N, 4] float32, entry [n, i] for token ``4 * blocks[n] + i``.
    """
    return words_gumbel(_block_words(blocks, positions, seeds))


def words_gumbel(words: Tensor) -> Tensor:
    """The noise that 32-bit words give: int64, overwritten, to float32 of the same shape."""
    u = words.bitwise_right_shift_(9).to(torch.float32).mul_(2.0**-23).add_(2.0**-24)
    return u.log_().neg_().log_().neg_()


def _block_words(blocks: Tensor, positions: Tensor, seeds: Tensor) -> Tensor:
    if blocks.numel() <= _SCALAR_BLOCKS:
        columns = (column.expand_as(blocks).tolist() for column in (blocks, positions, seeds))
        words = [
            philox_4x32_10((block, position & _LOW, 0, 0), (seed & _LOW, (seed >> 32) & _LOW))
            for block, position, seed in zip(*columns, strict=True)
        ]
        return torch.tensor(words, dtype=torch.int64, device=blocks.device).view(-1, 4)
    zero = positions.new_zeros(())
    counter = (blocks, positions & _LOW, zero, zero)
    return torch.stack(philox_4x32_10_tensors(counter, (seeds & _LOW, (seeds >> 32) & _LOW)), dim=-1)


def gumbel(seeds: Tensor, positions: Tensor, vocab: int) -> Tensor:
    """The noise of every token: the definition that cheaper forms are tested against.

    Args:
        seeds: [S] int64.
        positions: [S] int64.
        vocab: how many tokens there are.

    Returns:
        [S, vocab] float32.
    """
    blocks = torch.arange((vocab + 3) // 4, device=seeds.device)
    rows = [block_gumbel(blocks, *row).view(-1)[:vocab] for row in zip(positions, seeds, strict=True)]
    return torch.stack(rows) if rows else torch.empty(0, vocab, device=seeds.device)
