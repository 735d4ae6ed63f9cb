"""Which step sizes have graphs."""

from __future__ import annotations

import pytest

from draftline.engine.runner.shapes import StepShape, StepShapes


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


@pytest.mark.parametrize(("max_rows", "drafts"), [(256, 0), (256, 4), (300, 2), (64, 4), (5, 1)])
def test_every_step_with_prompts_runs_in_the_smallest_shape_that_holds_it(max_rows: int, drafts: int) -> None:
    shapes = StepShapes(max_rows, drafts, prompt_tokens=8192)
    assert len(set(shapes.all)) == len(shapes.all)
    for rows in (1, 2, 8, 9, 33, 100, 129, max_rows):
        for tokens in (rows + 1, 64, 65, 1000, 2049, 8192, 8193):
            if rows <= max_rows and rows < tokens:
                held = [
                    each for each in shapes.prompts if not each.drafts and each.rows >= rows and each.tokens >= tokens
                ]
                best = min(held, key=lambda each: (each.tokens, each.rows), default=None)
                assert shapes.of_chunks([tokens - rows + 1] + [1] * (rows - 1)) == best
                assert (best is None) == (tokens > 8192)


def test_padding_beside_many_tokens_is_an_eighth_of_them_at_most() -> None:
    shapes = StepShapes(256, 0, prompt_tokens=8192)
    assert shapes.of_chunks([1000]) == StepShape.with_prompts(128, 0, 1024)
    assert shapes.of_chunks([500]) == StepShape.with_prompts(32, 0, 512)
    assert shapes.of_chunks([5000]) == StepShape.with_prompts(256, 0, 5120)
