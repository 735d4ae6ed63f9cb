"""``AsyncGeneration``: one request of `AsyncClient` in flight, over all of its attempts.

A request is sent again where the queue is full or the server is away. If some of its output has arrived, it is sent
again only if its output is certain: if it is seeded or greedy. The client then checks that the tokens that it has seen
come again. The caller sees one request.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from typing import Generic

from draftline.engine.chat.messages import Chat
from draftline.engine.client.convert import with_stop
from draftline.engine.client.pace import Pacer, now
from draftline.engine.client.retry import RetryPolicy
from draftline.engine.client.session import ClientSession
from draftline.engine.errors import CallFailedError, DeadlineExceededError, EngineStoppedError, InvalidRequestError
from draftline.engine.outputs import Failed, RequestOutput, Update
from draftline.engine.params import T
from draftline.engine.protocol import GenerateRequest
from draftline.engine.streaming.accumulator import Accumulator

_CANCELLED = "cancelled"


class AsyncGeneration(Generic[T]):
    """One request in flight: iterate over its outputs so far, or await its `result`."""

    def __init__(
        self, request: GenerateRequest, session: Callable[[], ClientSession], retry: RetryPolicy, pace: Pacer
    ) -> None:
        """Submit ``request``; `AsyncClient.submit` makes these.

        Args:
            request: the request.
            session: returns the client's current stream.
            retry: when to send the request again.
            pace: the client's.
        """
        self._request = request
        self._session = session
        self._retry = retry
        self._pace = pace
        self._accumulator = self._new_accumulator()
        self._repeated: Accumulator | None = None  # of an attempt that has not come as far as the one before it
        self._deadline = now() + (math.inf if request.timeout_s is None else request.timeout_s)
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

    async def begun(self) -> None:
        """Wait for the first update or the request's end. Cancelling the wait cancels the request."""
        try:
            await self._has_update.wait()
        except asyncio.CancelledError:
            self.cancel()
            raise

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
        """End the request: its unfinished outputs get the finish reason ``cancelled``. No effect after the end."""
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
        failed = finished = 0
        error: Exception | None = None
        while True:
            if not await self._pace.enter([self._stop], self._time_left):
                if self._stop.done():
                    return self._stopped()
                raise too_late(error) from error
            try:
                error = await self._attempt(error)
            except BaseException:
                self._pace.leave(CallFailedError("cancelled"))
                raise
            self._pace.leave(error)
            if error is None:
                return self._accumulator.result()
            if self._pace.finished != finished:  # the server takes this client's requests, one after the other
                failed, finished = 0, self._pace.finished
            failed += 1
            wait = self._delay(failed, error)
            await asyncio.wait({self._stop}, timeout=wait)
            if self._stop.done():
                return self._stopped()

    @property
    def _time_left(self) -> float | None:
        return None if math.isinf(self._deadline) else max(0.0, self._deadline - now())

    def _delay(self, failed: int, error: Exception) -> float:
        """The seconds until the next attempt.

        Raises:
            Exception: the error, or that there is no time for another attempt.
        """
        if isinstance(error, InvalidRequestError):
            raise error.within(self._request.path)
        if self._has_output and not (self._is_certain and isinstance(error, EngineStoppedError)):
            raise error
        if self._retry.delay(1, error) is None:
            raise error
        wait = self._retry.delay(failed, error, time_left=self._time_left)
        if wait is None:
            if self._time_left is None:
                raise error
            raise too_late(error) from error
        return wait

    @property
    def _is_certain(self) -> bool:
        """Whether the request has the same output whenever it is sent."""
        sampling = self._request.sampling
        return sampling.seed is not None or sampling.temperature == 0

    def _new_accumulator(self) -> Accumulator:
        prompt = self._request.prompt
        ids = [] if isinstance(prompt, str | Chat) else list(prompt)
        return Accumulator("", self._request, ids)

    async def _attempt(self, before: Exception | None) -> Exception | None:
        """Submit the request once, after an attempt that ended with ``before``.

        Returns the error that ended it, or None where it finished.
        """
        ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        left = self._deadline - now()
        request = self._request if math.isinf(left) else replace(self._request, timeout_s=max(left, 1e-3))
        self._repeated = self._new_accumulator() if self._has_output else None
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
            return too_late(before)
        finally:
            self._cancel_attempt = None
            if not ended.done() or ended.result() is not None:
                session.cancel(name)  # no effect if the server has ended it
            session.discard(name)

    def _take(self, ended: asyncio.Future[Exception | None], update: Update) -> None:
        if ended.done():
            return
        if isinstance(update, Failed):
            ended.set_result(update.error)
            return
        self._has_output = True
        try:
            if self._collect(with_stop(update, self._request.sampling)):
                ended.set_result(None)
        except CallFailedError as error:
            ended.set_result(error)
        self._has_update.set()

    def _collect(self, update: Update) -> bool:
        """Add an update, and return whether the request has ended with it.

        Raises:
            CallFailedError: an attempt does not repeat the tokens of the one before it.
        """
        if self._repeated is None:
            return self._accumulator.take(update)
        has_ended = self._repeated.take(update)
        pairs = list(zip(self._accumulator.result().outputs, self._repeated.result().outputs, strict=True))
        for seen, again in pairs:
            length = len(seen.token_ids) if again.finished else min(len(seen.token_ids), len(again.token_ids))
            if seen.token_ids[:length] != again.token_ids[:length]:
                raise CallFailedError("the server came back with another output: its model or its options have changed")
        if all(len(again.token_ids) >= len(seen.token_ids) for seen, again in pairs):
            self._accumulator, self._repeated = self._repeated, None
        return has_ended

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


def too_late(error: Exception | None) -> DeadlineExceededError:
    """The error of a request whose time is over, with the error that its last attempt met."""
    late = DeadlineExceededError()
    return late if error is None else DeadlineExceededError(f"{late}; before, {error}")
