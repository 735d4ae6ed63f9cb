"""What the host writes for a decode graph."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest

from draftline.engine.buckets import Buckets
from draftline.engine.graph_inputs import fill_inputs, input_words, is_decode
from draftline.engine.params import SamplingParams
from draftline.engine.sequence import Row, Sequence


def row(slot: int, start: int, count: int = 1, pending: int = 1, drafts: int = 0) -> Row:
    """A row of a sequence with ``pending`` tokens to compute."""
    known = start + pending
    sequence = Sequence("r", 0, [0] * known, 1, SamplingParams(), seed=0, max_len=known + 9, order=0.0)
    return Row(sequence, slot, start, count, known, drafts, drafts + 1 if count == pending else 0)


@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize(("size", "count"), [(1, 1), (4, 0), (4, 3), (5, 5), (8, 5)])
def test_inputs_of_rows_and_padding(size: int, count: int, drafts: int) -> None:
    rows = tuple(row(slot=9 - i, start=20 + 3 * i, drafts=min(i, drafts)) for i in range(count))
    padding = size - count
    inputs = np.full(input_words(size), 77, np.int64)  # what an earlier step has left
    fill_inputs(inputs, size, rows)
    assert inputs[:size].tolist() == [r.slot for r in rows] + [0] * padding
    # Of query tokens, and of logits.
    begins = list(accumulate([1 + r.drafts for r in rows] + [0] * padding, initial=0))
    plan = inputs[size:].view(np.int32)
    assert plan[: 3 * size + 2].tolist() == [*begins, *begins, *(~r.start for r in rows), *[0] * padding]


@pytest.mark.parametrize(
    ("other", "decode"),
    [
        pytest.param(row(1, 5), True, id="decode"),
        pytest.param(row(1, 5, count=2, pending=2), False, id="the last two tokens"),
        pytest.param(row(1, 5, count=1, pending=2), False, id="a chunk of one token"),
        pytest.param(row(1, 5, drafts=1), True, id="drafts"),
    ],
)
def test_a_step_is_a_decode_if_every_row_is(other: Row, decode: bool) -> None:
    assert is_decode((row(0, 3), other)) is decode


def test_a_step_runs_in_the_smallest_bucket_that_holds_it() -> None:
    buckets = Buckets(max_rows=256, max_drafts=5)
    assert buckets.draft_lens == (0, 1, 2, 3, 4, 5)
    assert buckets(tuple(row(i, 5) for i in range(5))) == (6, 0)
    assert buckets(tuple(row(i, 5, drafts=i) for i in range(4))) == (4, 3)
    assert buckets(tuple(row(i, 5, drafts=6) for i in range(4))) is None
    assert buckets(tuple(row(i, 5) for i in range(256))) == (256, 0)
    assert buckets(tuple(row(i, 5) for i in range(257))) is None
    assert buckets(tuple(row(i, 5, drafts=1) for i in range(200))) is None
    assert set(Buckets(3, 0).all()) == {(1, 0), (2, 0), (3, 0)}
