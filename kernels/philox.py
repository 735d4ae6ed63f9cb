"""Counter-based random numbers: the noise that makes sampling a pure function of seed, position and token.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) turns a 128-bit counter and a
64-bit key into four 32-bit words; nothing is stored and no draw depends on another. The noise of a token is

* counter ``(token // 4, position mod 2**32, 0, 0)`` and key ``(seed mod 2**32, seed // 2**32)``, the seed read as
  unsigned 64-bit; the token's word is output ``token % 4``;
* ``u = (2 * (word >> 9) + 1) * 2**-24``: every step is exact in float32, and u is never 0 or 1 (24 bits plus a half
  would not be: the largest rounds to 1, whose noise is infinite, at one token in 2**24);
* ``gumbel = -log(-log(u))``, float32, between `GUMBEL_MIN` and `GUMBEL_MAX`.

The grid of u has a consequence that the Gumbel-max trick inherits: a token of small probability p is drawn with about
``p * h / sinh(h)``, ``h = 2**-24 / p``. That is p within 0.1% where p > 1e-6, and less than p for tokens rarer than
2**-24.

This is the host's form, in numpy, whose unsigned integers cost half as much as torch's masked ones. Not here: a
generator object, state, or logits.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

GUMBEL_MIN = -2.8116
"""Just under the least noise: ``-log(24 * log(2))``."""

GUMBEL_MAX = 16.6356
"""Just over the most noise: ``-log(-log(1 - 2**-24))``."""

_LOW = 0xFFFFFFFF

Words = npt.NDArray[np.uint64]

Word = int | npt.NDArray[np.integer[Any]]
"""A number below 2**32, or a uint64 array of such numbers."""


def philox_4x32_10(counter: tuple[Word, Word, Word, Word], key: tuple[Word, Word]) -> tuple[Word, Word, Word, Word]:
    """Philox4x32-10: four 32-bit words from a counter and a key; arrays and numbers broadcast."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        even, odd = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (odd >> 32) ^ c1 ^ k0, odd & _LOW, (even >> 32) ^ c3 ^ k1, even & _LOW
        k0, k1 = (k0 + 0x9E3779B9) & _LOW, (k1 + 0xBB67AE85) & _LOW
    return c0, c1, c2, c3


def token_gumbel(seed: int, position: int, token: int) -> float:
    """The noise of one token in double precision: within a few float32 roundings of `gumbel`'s."""
    word = _block_words(token // 4, position, seed)[token % 4]
    return -math.log(-math.log((2 * int(word >> 9) + 1) * 2.0**-24))


def block_uniform(blocks: npt.NDArray[np.int64], position: int | Words, seed: int | Words) -> npt.NDArray[np.float32]:
    """The numbers u of blocks of four tokens.

    Args:
        blocks: [N], token ids divided by 4.
        position: the position that the tokens may take: of all, or [N].
        seed: the request's seed, signed or unsigned 64-bit; or [N], each block's.

    Returns:
        [N, 4], entry [n, i] for token ``4 * blocks[n] + i``: odd multiples of 2**-24 between 0 and 1.
    """
    u = np.empty((len(blocks), 4), dtype=np.float32)
    for i, word in enumerate(_block_words(blocks.astype(np.uint64), position, seed)):
        u[:, i] = word >> 9
    u *= np.float32(2.0**-23)
    u += np.float32(2.0**-24)
    return u


def to_gumbel(u: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The Gumbel noise of uniform numbers, elementwise; overwrites them."""
    for _ in range(2):
        np.log(u, out=u)
        np.negative(u, out=u)
    return u


def gumbel(seeds: Tensor, positions: Tensor, vocab: int) -> Tensor:
    """The noise of every token of several rows.

    Args:
        seeds: [S] int64.
        positions: [S] int64.
        vocab: how many tokens there are.

    Returns:
        [S, vocab] float32 on the seeds' device.
    """
    blocks = np.arange((vocab + 3) // 4)
    noise = np.empty((len(seeds), vocab), dtype=np.float32)
    for row, (seed, position) in enumerate(zip(seeds.tolist(), positions.tolist(), strict=True)):
        noise[row] = to_gumbel(block_uniform(blocks, position, seed)).reshape(-1)[:vocab]
    return torch.from_numpy(noise).to(seeds.device)


def _block_words(block: Word, position: Word, seed: Word) -> tuple[Word, Word, Word, Word]:
    return philox_4x32_10((block, position & _LOW, 0, 0), (seed & _LOW, (seed >> 32) & _LOW))
