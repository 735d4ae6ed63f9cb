"""Philox against its published vectors and Triton's, and the noise's statistics with fixed seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from draftline.kernels.philox import (
    GUMBEL_MAX,
    GUMBEL_MIN,
    block_uniform,
    gumbel,
    philox_4x32_10,
    to_gumbel,
    token_gumbel,
)

PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0)
ONES = 0xFFFFFFFF
# The philox4x32 10 lines of Random123's kat_vectors: counter, key, result.
KNOWN_ANSWERS = [
    pytest.param((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8), id="zeros"),
    pytest.param((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD), id="ones"),
    pytest.param(PI[:4], PI[4:], (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1), id="pi"),
]

word32 = st.integers(0, ONES)


def p_value(chi_square: float, freedom: int) -> float:
    """How probable a chi-square statistic of at least this is."""
    half = torch.tensor([freedom / 2, chi_square / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def uniforms(noise: Tensor) -> Tensor:
    """The uniform numbers that Gumbel noise was made from."""
    return torch.exp(-torch.exp(-noise.double()))


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_known_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, int, int, int]
) -> None:
    assert philox_4x32_10(counter, key) == expected
    c0, c1, c2, c3, k0, k1 = (np.full(3, word, dtype=np.uint64) for word in (*counter, *key))
    words = philox_4x32_10((c0, c1, c2, c3), (k0, k1))
    assert [word.tolist() for word in words] == [[word] * 3 for word in expected]


@settings(max_examples=examples(50), deadline=None)
@given(st.tuples(word32, word32, word32, word32), st.lists(st.tuples(word32, word32), min_size=1, max_size=3))
def test_arrays_and_numbers_broadcast(counter: tuple[int, int, int, int], keys: list[tuple[int, int]]) -> None:
    c0, c1, c2, c3 = counter
    k0, k1 = np.array(keys, dtype=np.uint64).T
    words = np.stack(philox_4x32_10((np.full(len(keys), c0, dtype=np.uint64), c1, c2, c3), (k0, k1)), axis=-1)
    assert words.tolist() == [list(philox_4x32_10(counter, key)) for key in keys]


@triton.jit
def _triton_philox(out, seed_ptr, c0, c1, c2, c3):
    words = tl.philox(tl.load(seed_ptr), c0, c1, c2, c3)
    for i in tl.static_range(4):
        tl.store(out + i, words[i].to(tl.int64))


@pytest.mark.parametrize("seed", [0, 1, 0x299F31D0A4093822, -2, 2**63 - 1, -(2**63)])
def test_matches_tritons_philox(seed: int) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    out = torch.zeros(4, dtype=torch.int64, device=device)
    _triton_philox[(1,)](out, torch.tensor([seed], device=device), 12345, 678, 0, 0)
    expected = philox_4x32_10((12345, 678, 0, 0), (seed & ONES, (seed >> 32) & ONES))
    assert tuple(word & ONES for word in out.tolist()) == expected


@pytest.mark.parametrize("seed", [0, 3, -(2**40) - 3, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("position", [0, 2**31 - 1])
def test_number_of_a_token_is_its_word_of_its_block(seed: int, position: int) -> None:
    blocks = np.array([0, 7, 8, 100_000])
    u = block_uniform(blocks, position, seed)
    assert u.dtype == np.float32
    key = (seed & ONES, (seed >> 32) & ONES)
    words = [philox_4x32_10((block, position, 0, 0), key) for block in blocks.tolist()]
    assert u.tolist() == [[(2 * (word >> 9) + 1) / 2**24 for word in block] for block in words]
    noise = to_gumbel(u.copy())
    for token in (28, 29, 30, 31):
        assert token_gumbel(seed, position, token) == pytest.approx(float(noise[1, token - 28]), abs=2e-6)


def test_seed_is_read_as_unsigned() -> None:
    blocks = np.arange(5)
    assert np.array_equal(block_uniform(blocks, 3, -1), block_uniform(blocks, 3, 2**64 - 1))


def test_blocks_may_have_a_position_and_a_seed_each() -> None:
    seeds, positions, blocks = [0, -1, 2**63 - 1, -(2**63)], [0, 2**31 - 1, 7, 2**20], np.array([0, 7, 7, 100_000])
    together = block_uniform(blocks, np.array(positions, np.uint64), np.array(seeds, np.int64).view(np.uint64))
    for block, position, seed, numbers in zip(blocks, positions, seeds, together, strict=True):
        assert np.array_equal(block_uniform(np.array([block]), position, seed)[0], numbers)


@pytest.mark.parametrize("vocab", [1, 3, 4, 130])
def test_gumbel_lays_blocks_out_by_token(vocab: int) -> None:
    seeds, positions = torch.tensor([3, 2**62, -1]), torch.tensor([0, 5, 70000])
    noise = gumbel(seeds, positions, vocab)
    assert noise.shape == (3, vocab)
    assert noise.dtype == torch.float32
    for row in range(3):
        for token in {0, vocab // 2, vocab - 1}:
            expected = token_gumbel(int(seeds[row]), int(positions[row]), token)
            assert float(noise[row, token]) == pytest.approx(expected, abs=2e-6)
    assert gumbel(seeds[:0], positions[:0], vocab).shape == (0, vocab)


def test_noise_is_finite_and_within_its_bounds_at_both_ends() -> None:
    ends = to_gumbel(np.array([2.0**-24, 3 * 2.0**-24, 1 - 3 * 2.0**-24, 1 - 2.0**-24], dtype=np.float32))
    assert np.isfinite(ends).all()
    assert GUMBEL_MIN <= ends[0] < ends[1] < ends[2] < ends[3] <= GUMBEL_MAX
    assert float(ends[0]) == pytest.approx(-math.log(24 * math.log(2)), abs=1e-6)
    assert float(ends[3]) == pytest.approx(-math.log(-math.log1p(-(2.0**-24))), abs=1e-5)


def test_noise_does_not_depend_on_where_a_number_stands() -> None:
    """Vector lanes and remainders give the same bits, so the noise of a subset is the subset of the noise."""
    u = (np.arange(1, 2**24, 2 * 757) / 2**24).astype(np.float32)
    full = to_gumbel(u.copy())
    order = np.random.default_rng(0).permutation(len(u))
    assert np.array_equal(to_gumbel(u[order]), full[order])
    for width in (1, 2, 3, 7, 15, 17, 33):
        assert np.array_equal(to_gumbel(u[5 : 5 + width].copy()), full[5 : 5 + width])


@pytest.mark.parametrize(
    "axis", ["tokens", "high-seeds", *(pytest.param(one, marks=pytest.mark.slow) for one in ("positions", "seeds"))]
)
def test_noise_is_uniform_along_every_axis(axis: str) -> None:
    count = 8_000
    steps, seven = torch.arange(count), torch.full((count,), 7)
    if axis == "tokens":
        noise = gumbel(torch.tensor([42]), torch.tensor([7]), count)[0]
    elif axis == "positions":
        noise = gumbel(seven, steps, 4)[:, 1]
    elif axis == "seeds":
        noise = gumbel(steps, seven, 4)[:, 2]
    else:
        noise = gumbel(steps << 32, seven, 4)[:, 3]
    u = uniforms(noise)
    counts = torch.histc(u, bins=64, min=0.0, max=1.0)
    assert p_value(float(((counts - count / 64) ** 2).sum() / (count / 64)), 63) > 1e-3
    # Successive values are independent: an 8 x 8 table of pairs.
    cells = (u * 8).long().clamp_(max=7)
    pairs = torch.bincount(cells[0::2] * 8 + cells[1::2], minlength=64).double()
    expected = count / 2 / 64
    assert p_value(float(((pairs - expected) ** 2).sum() / expected), 63) > 1e-3


def test_neighbouring_keys_and_counters_are_uncorrelated() -> None:
    base = gumbel(torch.tensor([42]), torch.tensor([7]), 20_000)[0].double()
    for seed, position in ((43, 7), (42, 8), (42 + 2**32, 7), (7, 42)):
        other = gumbel(torch.tensor([seed]), torch.tensor([position]), 20_000)[0].double()
        correlation = float(torch.corrcoef(torch.stack((base, other)))[0, 1])
        assert abs(correlation) < 4 / math.sqrt(20_000)


def test_noise_has_gumbels_mean_and_variance() -> None:
    noise = gumbel(torch.tensor([1]), torch.tensor([2]), 100_000)[0].double()
    deviation = math.pi / math.sqrt(6)
    assert float(noise.mean()) == pytest.approx(0.5772156649, abs=4 * deviation / math.sqrt(100_000))
    assert float(noise.std()) == pytest.approx(deviation, rel=0.02)
