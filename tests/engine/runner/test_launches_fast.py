"""Which launches are short: the threads that deliver updates wait for those only."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from tiny import tiny_core

from draftline.engine.params import SamplingParams
from draftline.engine.request.sequence import Row, Sequence
from draftline.engine.runner.executor import Executor, Executors
from draftline.engine.runner.runner import Runner
from draftline.engine.runner.shapes import StepShapes


def row(count: int = 1, *, on_host: bool | None = None, samples: int = 1) -> Row:
    """A row of ``count`` tokens, with a constraint that the host enforces, or the device, or with none."""
    constraint: Any = None if on_host is None else SimpleNamespace(on_host=on_host)
    sampling = SamplingParams()
    sequence = Sequence("r", 0, [0] * 99, 9, sampling, seed=0, max_len=199, order=0.0, constraint=constraint)
    return Row(sequence, 0, 99 - count, count, 99, 0, samples)


@pytest.mark.parametrize(
    ("rows", "fast"),
    [
        pytest.param([row(), row()], True, id="decodes"),
        pytest.param([row(), row(40)], False, id="no graph holds a prompt"),
        pytest.param([row(), row(on_host=False)], True, id="a constraint on the device"),
        pytest.param([row(), row(on_host=True)], False, id="one on the host"),
        pytest.param([row(on_host=True, samples=0)], False, id="a chunk of its prompt has no graph"),
    ],
)
def test_launches_by_graphs_that_wait_for_no_tokens(rows: list[Row], fast: bool) -> None:
    runner: Runner = tiny_core()._runner
    eager, graph = cast(Executor, object()), cast(Executor, object())
    shapes = StepShapes(4, 0)
    runner._executors = Executors(eager, shapes, dict.fromkeys(shapes.all, graph))
    assert runner.launches_fast(tuple(rows)) is fast


def test_without_graphs_no_launch_is() -> None:
    assert not tiny_core()._runner.launches_fast((row(),))
