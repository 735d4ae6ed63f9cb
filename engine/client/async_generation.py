"""``AsyncGeneration``: one request of `AsyncClient` in flight, over all of its attempts."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Generic

from draftline.engine.client.retry import RetryPolicy
from draftline.engine.client.session import ClientSession
from draftline.engine.errors import DeadlineExceededError, InvalidRequestError
from draftline.engine.outputs import Failed, Finished, RequestOutput, Update
from draftline.engine.params import T
from draftline.engine.protocol import Chat, GenerateRequest
from draftline.engine.streaming.accumulator import Accumulator

_CANCELLED = "cancelled"


class AsyncGeneration(Generic[T]):
    """One request in flight: iterate over its outputs so far, or await its `result`."""

    def __init__(self, request: GenerateRequest, session: Callable[[], ClientSession], retry: RetryPolicy) -> None:
        """Submit ``request``; `AsyncClient.submit` makes these.

        Args:
            request: the request.
            session: returns the client's current stream.
            retry: when to send the request again.
        """
        prompt = request.prompt
        ids = [] if isinstance(prompt, str | Chat) else list(prompt)
        self._request = request
        self._session = session
        self._retry = retry
        self._accumulator = Accumulator("", request, ids)
        self._deadline = _now() + (math.inf if request.timeout_s is None else request.timeout_s)
        self._has_update = asyncio.Event()
        self._has_output = False
        self._stop: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._cancel_attempt: Callable[[], None] | None = None
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._ended)

    async def __aiter__(self) -> AsyncIterator[RequestOutput[T]]:
        """Yield the outputs so far whenever there are new tokens. A slow reader sees fewer, larger steps.

        Leaving the iteration early cancels the request. One iteration at a time.

        Raises:
            DraftlineError: the error that ended the request.
        """
        try:
            while not self._task.done():
                await self._has_update.wait()
                self._has_update.clear()
                if self._task.done():
                    break
                if self._has_output:
                    # The snapshot decides below: more tokens may arrive while the reader runs.
                    output = self._accumulator.snapshot()
                    yield output
                    if output.finished:
                        return
            yield await self.result()
        finally:
            self.cancel()

    async def result(self) -> RequestOutput[T]:
        """Wait for the finished request. Cancelling the wait cancels the request.

        Raises:
            DraftlineError: the error that ended the request.
        """
        try:
            await asyncio.wait({self._task})
        finally:
            self.cancel()
        return self._task.result()

    def cancel(self) -> None:
        """End the request: its unfinished outputs get the finish reason ``cancelled``. No effect on a finished request."""
        self._end(None)

    def fail(self, error: Exception) -> None:
        """End the request with an error of the client."""
        self._end(error)

    def on_end(self, callback: Callable[[AsyncGeneration[T]], None]) -> None:
        """Call ``callback`` when the request has ended."""
        self._task.add_done_callback(lambda _: callback(self))

    def _end(self, error: Exception | None) -> None:
        if self._task.done() or self._stop.done():
            return
        self._stop.set_result(error)
        if error is None and self._cancel_attempt is not None:
            self._cancel_attempt()  # the server answers with the end of each output

    async def _run(self) -> RequestOutput[T]:
        for attempt in count(1):
            error = await self._attempt()
            if error is None:
                return self._accumulator.result()
            wait = None if self._has_output else self._retry.delay(attempt, error)
            if wait is None:
                raise error.within(self._request.path) if isinstance(error, InvalidRequestError) else error
            if _now() + wait >= self._deadline:
                raise DeadlineExceededError("the request's timeout leaves no time for another attempt") from error
            await asyncio.wait({self._stop}, timeout=wait)
            if self._stop.done():
                return self._stopped()
        raise AssertionError

    async def _attempt(self) -> Exception | None:
        """Submit the request once. Returns the error that ended it, or None where it finished."""
        ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        left = self._deadline - _now()
        request = self._request if math.isinf(left) else replace(self._request, timeout_s=max(left, 1e-3))
        session = self._session()
        name = session.submit(request, partial(self._take, ended))
        self._cancel_attempt = partial(session.cancel, name)
        try:
            if self._stop.done():
                self._cancel_attempt()
            async with asyncio.timeout(None if math.isinf(left) else left):
                while not ended.done():
                    await asyncio.wait(
                        {ended, *([] if self._stop.done() else [self._stop])}, return_when="FIRST_COMPLETED"
                    )
                    if self._stop.done() and (error := self._stop.result()) is not None:
                        return error
            return ended.result()
        except TimeoutError:
            return DeadlineExceededError()
        finally:
            self._cancel_attempt = None
            if ended.done():
                session.discard(name)
            else:
                session.abandon(name)

    def _take(self, ended: asyncio.Future[Exception | None], update: Update) -> None:
        if ended.done():
            return
        if isinstance(update, Failed):
            ended.set_result(update.error)
            return
        self._has_output = True
        if self._accumulator.take(self._with_stop(update)):
            ended.set_result(None)
        self._has_update.set()

    def _with_stop(self, update: Update) -> Update:
        """Tell a stop token from a stop text by the request: the message has no field for it."""
        if not isinstance(update, Finished):
            return update
        sampling, matched = self._request.sampling, update.matched_stop
        by_token = matched not in sampling.stop and matched.isdecimal() and int(matched) in sampling.stop_token_ids
        return replace(update, stopped_by_token=by_token)

    def _stopped(self) -> RequestOutput[T]:
        """The result of a request that is stopped between two attempts."""
        if (error := self._stop.result()) is not None:
            raise error
        whole = self._accumulator.result()
        for output in whole.outputs:
            output.finish_reason = _CANCELLED
        self._has_output = True
        return whole

    def _ended(self, task: asyncio.Task[RequestOutput[T]]) -> None:
        if not task.cancelled():
            task.exception()  # marks it as retrieved: asyncio logs errors that are never retrieved
        self._has_update.set()


def _now() -> float:
    return asyncio.get_running_loop().time()
