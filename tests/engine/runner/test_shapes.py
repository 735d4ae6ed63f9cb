"""Which step sizes have graphs."""

from __future__ import annotations

import pytest

from draftline.engine.runner.shapes import StepShapes


@pytest.mark.parametrize("drafts", [0, 4])
@pytest.mark.parametrize("prompt_tokens", [0, 512])
def test_graphs_of_fewer_rows_where_there_is_less_memory(drafts: int, prompt_tokens: int) -> None:
    shapes = StepShapes(256, drafts, prompt_tokens)
    assert shapes.within(shapes.max_samples) is shapes
    before = shapes
    for samples in (shapes.max_samples - 1, 200, 64, 17, drafts + 1):
        fewer = shapes.within(samples)
        assert fewer.max_samples <= samples
        assert fewer.max_samples <= before.max_samples
        assert set(fewer.draft_lens) == set(shapes.draft_lens)
        before = fewer
    # One row is always possible.
    assert before.max_samples == shapes.within(0).max_samples == drafts + 1
    assert before.of_decode(1, drafts) is not None
    assert before.of_decode(2, drafts) is None
