"""Which step sizes have graphs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence as SequenceOf
from typing import cast

import pytest

from draftline.engine.params import SamplingParams
from draftline.engine.request.sequence import Row, Sequence
from draftline.engine.runner.executor import Executor, Executors
from draftline.engine.runner.shapes import StepShape, StepShapes
from draftline.kernels.limits import LEAST_LONG_HISTORY


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


def test_no_shape_is_there_twice() -> None:
    for max_rows in (511, 512, 513, 700):
        shapes = StepShapes(max_rows, 4, prompt_tokens=512, max_len=4096).all
        assert len(set(shapes)) == len(shapes)


def test_padding_beside_many_tokens_is_an_eighth_of_them_at_most() -> None:
    shapes = StepShapes(256, 0, prompt_tokens=8192)
    assert shapes.of_chunks([1000]) == StepShape.with_prompts(128, 0, 1024)
    assert shapes.of_chunks([500]) == StepShape.with_prompts(64, 0, 512)
    assert shapes.of_chunks([5000]) == StepShape.with_prompts(256, 0, 5120)


def test_padding_beside_prompts_counts_with_its_drafts() -> None:
    """Each of them has logits."""
    shapes = StepShapes(256, 4, prompt_tokens=8192)
    prompt = dataclasses.replace(decoding([900])[0], start=0, count=900, samples=1)
    few, more = decoding([300] * 20, drafts=4), decoding([300] * 60, drafts=4)
    assert shapes.of_step((*few, prompt)) == StepShape.with_prompts(32, 4, 1024)
    assert shapes.of_step((*more, prompt)) == StepShape.with_prompts(64, 4, 1280)
    assert shapes.of_step((*few, *[prompt] * 5)) == StepShape.with_prompts(128, 4, 5120)


def decoding(lengths: SequenceOf[int], drafts: int = 0) -> tuple[Row, ...]:
    """Rows that decode after so many tokens."""
    sampling = SamplingParams()
    return tuple(
        Row(
            Sequence("r", slot, [0] * length, 1, sampling, seed=0, max_len=length + 9, order=0.0),
            slot,
            length - 1,
            1,
            length,
            drafts,
            drafts + 1,
        )
        for slot, length in enumerate(lengths)
    )


def test_uneven_histories_have_shapes_of_their_own() -> None:
    shapes = StepShapes(64, 4, prompt_tokens=256, max_len=4096)
    asked: list[tuple[int, list[int], int]] = []

    def are_uneven(query_len: int, lengths: SequenceOf[int], prompts: int) -> bool:
        asked.append((query_len, list(lengths), prompts))
        return max(lengths, default=0) > 1000

    assert shapes.of_step(decoding([300] * 9), are_uneven) == StepShape.decode(12, 0)
    assert shapes.of_step(decoding([300] * 8 + [2000]), are_uneven) == StepShape.decode(16, 0, uneven=True)
    assert shapes.of_step(decoding([2000] + [300] * 40, drafts=2), are_uneven) == StepShape.decode(48, 2, uneven=True)
    assert asked == [(1, [300] * 9, 0), (1, [300] * 8 + [2000], 0), (3, [2002] + [302] * 40, 0)]
    assert shapes.of_step(decoding([2000, 300])) == StepShape.decode(2, 0), "without a device that divides any"
    for shape in shapes.uneven:
        assert shape in shapes.all
        assert shape.samples <= shapes.max_samples
    asked.clear()
    more = StepShapes(64, 16, max_len=4096)
    assert more.of_step(decoding([2000] * 9, drafts=5), are_uneven) == StepShape.decode(16, 16, uneven=True)
    assert [query_len for query_len, *_ in asked] == [17], "that of the graph"


def test_rows_with_uneven_histories_draft_in_shapes_of_their_own() -> None:
    shapes = StepShapes(64, 4, max_len=4096)

    def are_uneven(query_len: int, lengths: SequenceOf[int], prompts: int) -> bool:
        assert (query_len, prompts) == (1, 0)
        return max(lengths) > 1000

    assert shapes.of_drafts(decoding([300] * 9, drafts=2), are_uneven) == StepShape.decode(12, 2)
    uneven = shapes.of_drafts(decoding([300] * 9 + [2000], drafts=2), are_uneven)
    assert uneven == StepShape.decode(16, 2, uneven=True)
    assert uneven in shapes.drafting
    assert all(shape.drafts for shape in shapes.drafting)
    assert shapes.of_drafts(decoding([300] * 9 + [2000], drafts=2)) == StepShape.decode(12, 2)
    more = StepShapes(64, 8, max_len=4096)
    assert [more.of_drafts(decoding([2000] * 9, drafts=k), are_uneven) for k in (4, 5, 9)] == [
        StepShape.decode(16, 4, uneven=True),
        StepShape.decode(16, 8, uneven=True),
        None,
    ]


def test_uneven_histories_beside_prompts_have_shapes_of_their_own() -> None:
    shapes = StepShapes(64, 4, prompt_tokens=4096, max_len=4096)
    prompt = dataclasses.replace(decoding([400])[0], start=100, count=300, samples=1)
    asked: list[tuple[int, list[int], int]] = []

    def are_uneven(query_len: int, lengths: SequenceOf[int], prompts: int) -> bool:
        asked.append((query_len, list(lengths), prompts))
        return max(lengths) > 1000

    def shape_of(rows: tuple[Row, ...]) -> StepShape | None:
        return shapes.of_step(rows, are_uneven)

    assert shape_of((*decoding([300] * 9), prompt)) == StepShape.with_prompts(32, 0, 320)
    assert shape_of((*decoding([300] * 8 + [2000]), prompt)) == StepShape.with_prompts(32, 0, 320, uneven=True)
    assert shape_of((prompt, *decoding([2000] * 9, drafts=2))) == StepShape.with_prompts(32, 4, 384, uneven=True)
    assert asked == [(1, [300] * 9, 23), (1, [300] * 8 + [2000], 23), (5, [2002] * 9, 23)], "the rest of 32 rows"
    longer = dataclasses.replace(prompt, count=2100)
    assert shape_of((*decoding([300, 2000]), longer)) == StepShape.with_prompts(64, 0, 2560), "there is no larger one"
    for shape in shapes.uneven:
        assert shape.uneven
        assert shape not in shapes.catch_ups


def test_steps_with_uneven_histories_run_in_their_graphs() -> None:
    shapes = StepShapes(8, 0, max_len=4096)
    eager, *executors = (cast(Executor, object()) for _ in range(len(shapes.all) + 1))
    graphs = dict(zip(shapes.all, executors, strict=True))
    both = Executors(eager, shapes, graphs, are_uneven=lambda query_len, lengths, prompts: max(lengths) > 1000)
    assert both.for_step(decoding([300, 2000])) is graphs[StepShape.decode(8, 0, uneven=True)]
    assert both.for_step(decoding([300, 400])) is graphs[StepShape.decode(2, 0)]
    assert Executors(eager, shapes, graphs).for_step(decoding([300, 2000])) is graphs[StepShape.decode(2, 0)]


def test_no_history_is_long_where_the_model_or_the_batch_is_short() -> None:
    assert StepShapes(64, 0, max_len=LEAST_LONG_HISTORY).uneven == []
    assert StepShapes(1, 0, max_len=4096).uneven == []
    assert {shape.rows for shape in StepShapes(256, 4, max_len=4096).within(40).uneven} == {8}
