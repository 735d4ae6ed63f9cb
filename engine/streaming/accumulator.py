"""The accumulator: builds a whole `RequestOutput` from a request's updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from draftline.engine.outputs import CompletionOutput, Delta, Failed, Finished, RequestOutput, Update
from draftline.engine.protocol import GenerateRequest


class Accumulator:
    """Collects the updates of one request."""

    def __init__(self, request_id: str, request: GenerateRequest, prompt_token_ids: Sequence[int]) -> None:
        """Create an accumulator without updates.

        Args:
            request_id: the request's id.
            request: the request as the client wrote it.
            prompt_token_ids: the prompt's tokens.
        """
        prompt = request.prompt if isinstance(request.prompt, str) else None
        outputs = [CompletionOutput(index, constraint=request.constraint) for index in range(request.sampling.n)]
        self._output: RequestOutput[Any] = RequestOutput(request_id, prompt, list(prompt_token_ids), outputs)
        self._error: Exception | None = None

    def take(self, update: Update) -> bool:
        """Add an update.

        Returns:
            Whether the request has ended with it.
        """
        match update:
            case Delta():
                self._add(update)
                return False
            case Finished():
                output = self._output.outputs[update.index]
                output.finish_reason = update.finish_reason.name.lower()
                output.stop_reason = update.stop_reason
                output.finished = update
            case Failed():
                self._error = update.error
                return True
        return self._output.finished

    def result(self) -> RequestOutput[Any]:
        """Return the outputs so far. Later updates change them.

        Raises:
            Exception: the fault that ended the request, if any.
        """
        if self._error is not None:
            raise self._error.with_traceback(None)  # a step's requests share it, and each raise would add to it
        return self._output

    def snapshot(self) -> RequestOutput[Any]:
        """Return a copy of the outputs so far. Later updates do not change it.

        Raises:
            Exception: the fault that ended the request, if any.
        """
        whole = self.result()
        outputs = [replace(o, token_ids=list(o.token_ids)) for o in whole.outputs]
        return replace(whole, outputs=outputs)

    def _add(self, delta: Delta) -> None:
        output = self._output.outputs[delta.index]
        output.text += delta.text
        output.reasoning_text += delta.reasoning
        output.token_ids.extend(delta.token_ids)
        if delta.logprobs:
            output.logprobs = [*(output.logprobs or ()), *delta.logprobs]
        # A server sends those of a long prompt in several messages. All outputs have the same prompt.
        if delta.prompt_logprobs and not delta.index:
            self._output.prompt_logprobs = [*(self._output.prompt_logprobs or ()), *delta.prompt_logprobs]
