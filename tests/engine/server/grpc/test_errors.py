"""Errors through a status and back."""

from __future__ import annotations

import pytest
from google.rpc.code_pb2 import RESOURCE_EXHAUSTED
from google.rpc.status_pb2 import Status

from draftline.engine.client.errors import error_of
from draftline.engine.client.retry import RetryPolicy
from draftline.engine.errors import (
    CONTEXT_LENGTH_EXCEEDED,
    ConstraintLimitError,
    DeadlineExceededError,
    DraftlineError,
    EngineStoppedError,
    FieldViolation,
    InvalidRequestError,
    QueueFullError,
    UnauthenticatedError,
)
from draftline.engine.server.grpc.errors import to_status


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequestError(FieldViolation("sampling.n", "too large")),
        InvalidRequestError(FieldViolation("text", "the prompt is too long", CONTEXT_LENGTH_EXCEEDED)),
        QueueFullError("4 requests wait", 1.5),
        ConstraintLimitError("it needs more than 50000 lexer states"),
        EngineStoppedError("draining"),
        DeadlineExceededError("late"),
        UnauthenticatedError("unknown token"),
    ],
    ids=str,
)
def test_a_client_raises_what_the_server_raised(error: DraftlineError) -> None:
    received = error_of(to_status(error))
    assert type(received) is type(error)
    assert str(received) == str(error)
    assert received.__reduce__() == error.__reduce__()


def test_a_limit_of_a_constraint_is_not_tried_again() -> None:
    status = to_status(ConstraintLimitError("it needs more than 50000 lexer states"))
    assert status.code == RESOURCE_EXHAUSTED
    assert RetryPolicy().delay(1, error_of(status)) is None
    assert RetryPolicy().delay(1, error_of(Status(code=RESOURCE_EXHAUSTED))) is not None
