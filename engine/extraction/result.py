"""``Extraction``: what became of one text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from draftline.engine.errors import DraftlineError
from draftline.engine.outputs import RequestOutput
from draftline.engine.params import T


@dataclass(frozen=True, slots=True)
class Extraction(Generic[T]):
    """The value that was read out of one text, or the reason why there is none.

    Attributes:
        index: the text's index in the call.
        error: None, or why there is no value: `IncompleteOutputError`, `InvalidOutputError`, or the error that refused
            or ended the request.
        output: the last answer; None where there was none.
        attempts: the number of requests.
    """

    index: int
    error: DraftlineError | None
    output: RequestOutput[T] | None
    attempts: int

    @property
    def value(self) -> T:
        """The value.

        Raises:
            DraftlineError: ``error``, where there is one.
        """
        if self.error is not None:
            raise self.error
        assert self.output is not None
        return self.output.parsed

    def __repr__(self) -> str:
        """The value or the error: the answer's text and tokens would hide it."""
        result = f"value={self.value!r}" if self.error is None else f"error={self.error!r}"
        return f"Extraction(index={self.index}, {result}, attempts={self.attempts})"
