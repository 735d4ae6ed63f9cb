"""Puts a request's updates together into a whole `RequestOutput`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from draftline.engine.outputs import CompletionOutput, Delta, Failed, Finished, FinishReason, RequestOutput, Update

if TYPE_CHECKING:
    from draftline.engine.request.request import Request  # which reads models; clients of a server do without


class Accumulator:
    """Collects one request's updates."""

    def __init__(self, request_id: str, prompt: str | None, prompt_token_ids: Sequence[int], n: int) -> None:
        """``n`` is the number of the request's outputs; see `RequestOutput` for the others."""
        outputs = [CompletionOutput(index) for index in range(n)]
        self._output = RequestOutput(request_id, prompt, list(prompt_token_ids), outputs)
        self._error: Exception | None = None

    @classmethod
    def of(cls, request: Request) -> Accumulator:
        """An empty one for ``request``."""
        return cls(request.request_id, request.prompt, request.prompt_token_ids, len(request.sequences))

    def take(self, update: Update) -> bool:
        """Add an update; True if the request ended with it."""
        match update:
            case Delta():
                self._add(update)
            case Finished():
                output = self._output.outputs[update.index]
                output.finish_reason = update.finish_reason.name.lower()
                output.stop_reason = _stop_reason(update)
                output.finished = update
            case Failed():
                self._error = update.error
                return True
        return self._output.finished

    def result(self) -> RequestOutput:
        """The request as it stands.

        Raises:
            Exception: the fault that ended it, if one did.
        """
        if self._error is not None:
            raise self._error
        return self._output

    def snapshot(self) -> RequestOutput:
        """A copy of the request as it stands, which later updates leave alone.

        Raises:
            Exception: the fault that ended it, if one did.
        """
        whole = self.result()
        outputs = [replace(o, token_ids=list(o.token_ids)) for o in whole.outputs]
        return replace(whole, outputs=outputs)

    def _add(self, delta: Delta) -> None:
        output = self._output.outputs[delta.index]
        output.text += delta.text
        output.token_ids.extend(delta.token_ids)
        if delta.logprobs:
            output.logprobs = [*(output.logprobs or ()), *delta.logprobs]
        if delta.prompt_logprobs:
            self._output.prompt_logprobs = list(delta.prompt_logprobs)


def _stop_reason(finished: Finished) -> str | int | None:
    """VLLM's: the stop string, or the stop token's id, or None."""
    if finished.finish_reason is not FinishReason.STOP:
        return None
    matched = finished.matched_stop
    return int(matched) if finished.stopped_by_token else matched
