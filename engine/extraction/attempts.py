"""``Attempts``: one text of an extraction, from its first request to its result. It sends nothing itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Generic

from draftline.engine.errors import (
    DraftlineError,
    FieldViolation,
    IncompleteOutputError,
    InvalidRequestError,
    OutputError,
    check_unicode,
    kind_of,
)
from draftline.engine.extraction.prompt import ExtractionPrompt, FailedAttempt
from draftline.engine.extraction.result import Extraction
from draftline.engine.outputs import RequestOutput
from draftline.engine.params import T
from draftline.engine.protocol import GenerateRequest

_SHOWN = 500
"""Characters that the next attempt sees of an answer without an end, or of an error."""


class Attempts(Generic[T]):
    """The requests for one text. Call `request`, send it, and `take` its outcome, until there is a result."""

    def __init__(
        self, index: int, text: object, prompt: ExtractionPrompt, request: GenerateRequest, retry: int
    ) -> None:
        """Begin.

        Args:
            index: the text's index in the call.
            text: the text. Another type is refused in `request`, so that it fails this text alone.
            prompt: what is around it.
            request: the first request, without its prompt.
            retry: how many more there may be.
        """
        self.index = index
        self._text = text
        self._prompt = prompt
        self._request = request
        self._retry = retry
        self._count = 0
        self._failed: list[FailedAttempt] = []
        self._answered: tuple[OutputError, RequestOutput[T]] | None = None

    def request(self) -> GenerateRequest:
        """The next request.

        Raises:
            InvalidRequestError: the text is no text. `take` it.
        """
        try:
            text = _checked(self._text)
        except InvalidRequestError as error:
            raise error.within(self._request.path) from None
        sampling = self._request.sampling
        if sampling.seed is not None:
            sampling = sampling.model_copy(update={"seed": (sampling.seed + self._count) % 2**64})
        return replace(self._request, prompt=self._prompt.of(text, self._failed), sampling=sampling)

    def take(self, outcome: RequestOutput[Any] | DraftlineError) -> Extraction[T] | None:
        """Take the outcome of the last request: its output, or the error that refused or ended it.

        Returns:
            The text's result, or None if there is to be another request.
        """
        self._count += 1
        if isinstance(outcome, DraftlineError):
            if self._answered is not None and isinstance(outcome, InvalidRequestError):
                return self._end(*self._answered)  # the correction did not fit: the answer's own error says more
            return self._end(outcome, None)
        try:
            outcome.parsed  # noqa: B018  it is kept
        except OutputError as error:
            if self._count > self._retry:
                return self._end(error, outcome)
            self._answered = error, outcome
            self._failed.append(_failed_attempt(error))
            return None
        return self._end(None, outcome)

    def _end(self, error: DraftlineError | None, output: RequestOutput[T] | None) -> Extraction[T]:
        return Extraction(self.index, error, output, self._count)


def _checked(text: object) -> str:
    if not isinstance(text, str):
        raise InvalidRequestError(FieldViolation("prompt", f"must be text, not {kind_of(text)}"))
    check_unicode("prompt", text)
    return text


def _failed_attempt(error: OutputError) -> FailedAttempt:
    if isinstance(error, IncompleteOutputError):
        return FailedAttempt(_shortened(error.text), f"This answer is too long: {error}. Answer again, and be brief.")
    return FailedAttempt(error.text, f"This answer is wrong: {_shortened(str(error))}. Correct it.")


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
