"""Joining the tiles of shared histories, interpreted."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from draftline.kernels.batch import Batch
from draftline.kernels.triton.attention.join import _MANY_PROGRAMS, TileStates, join_tiles

BLOCK_N, HEADS, DIM = 16, 4, 8
TILES = (1, 7, 8, 9, 15, 16, 17, 33)


def joined(states: TileStates, rows: list[int], tiles: list[int]) -> Tensor:
    """The attention of some rows of the states, each with so many tiles."""
    count = len(rows)
    chosen = TileStates(states.partial[:, rows].contiguous(), states.stats[:, rows].contiguous())
    nothing = torch.zeros(count, dtype=torch.int64)
    lens = [(number - 1) * BLOCK_N + 1 for number in tiles]
    batch = Batch(
        nothing, nothing, nothing, torch.arange(count + 1, dtype=torch.int32), torch.tensor(lens, dtype=torch.int32),
        nothing.view(-1, 1).int(), nothing, (1,) * count, tuple(lens),
    )  # fmt: skip
    out = torch.zeros(count, HEADS * DIM)
    join_tiles(chosen, out, batch, None, BLOCK_N, overlap=False)
    return out


@pytest.fixture
def states(rng: torch.Generator) -> TileStates:
    shape = (max(TILES), 5 * len(TILES), 1, HEADS)
    stats = torch.stack((torch.randn(shape, generator=rng) * 4, torch.rand(shape, generator=rng) + 0.5), -1)
    return TileStates(torch.randn((*shape, DIM), generator=rng), stats)


def test_many_programs_join_with_the_bits_of_few(states: TileStates) -> None:
    rows = list(range(states.partial.shape[1]))
    tiles = [TILES[row % len(TILES)] for row in rows]
    assert len(rows) * HEADS > _MANY_PROGRAMS >= HEADS
    together = joined(states, rows, tiles)
    for row, number in enumerate(TILES):  # each number once: the interpreter is slow
        assert torch.equal(joined(states, [row], [number])[0], together[row])


@pytest.mark.parametrize("tiles", TILES)
def test_the_tiles_are_weighted_by_their_largest_scores(tiles: int, states: TileStates) -> None:
    largest, sums = states.stats[:tiles, 0, 0].double().unbind(-1)
    weights = torch.exp2(largest - largest.max(0).values)
    expected = (states.partial[:tiles, 0, 0].double() * weights[..., None]).sum(0) / (sums * weights).sum(0)[:, None]
    assert_close(joined(states, [0], [tiles])[0].view(HEADS, DIM).double(), expected, rtol=1e-5, atol=1e-5)
