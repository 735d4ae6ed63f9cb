"""Outputs that are built from updates, and the errors in their place."""

from __future__ import annotations

import traceback

import pytest

from draftline.engine.errors import StepFailedError
from draftline.engine.outputs import Failed
from draftline.engine.protocol import GenerateRequest
from draftline.engine.streaming.accumulator import Accumulator


def test_an_error_that_requests_share_shows_one_traceback() -> None:
    error = StepFailedError()
    for _ in range(3):
        accumulator = Accumulator("", GenerateRequest([1]), [1])
        assert accumulator.take(Failed(error))
        with pytest.raises(StepFailedError) as raised:
            accumulator.result()
    assert [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)][1:] == ["result"]
