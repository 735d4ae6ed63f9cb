"""``InFlightRequest``: the life of one request of one call, the same in every face.

A request is admitted, submitted, followed by its updates, and closed. Closing it cancels it in the engine if it still
runs, reports how it ended, and makes room for the next request. It can be ended at any time, also while its constraint
compiles or its prompt is tokenized: then the engine never gets it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Protocol, Self

from draftline.engine.chat.messages import Chat
from draftline.engine.errors import DraftlineError
from draftline.engine.outputs import Delta, Failed, Finished, FinishReason, SpeculationStats, Timing, Update, Usage
from draftline.engine.protocol import EngineClient, GenerateRequest
from draftline.engine.server.access import Caller
from draftline.engine.server.codes import OK
from draftline.engine.server.state import ServerState
from draftline.engine.server.submission import Preparation, as_it_is, prepared
from draftline.engine.server.telemetry.reports import Origin, ReportBuilder
from draftline.engine.streaming.mailbox import Mailbox


class Call(Protocol):
    """A call of a client, as its face knows it. Each face implements this for its transport."""

    @property
    def caller(self) -> Caller:
        """The owner of the call's token."""
        ...

    @property
    def origin(self) -> Origin:
        """The source of the call, for reports."""
        ...

    def outcome(self, error: BaseException) -> str:
        """The code of a request that ``error`` ends: an engine's or transport's error, or the cancelled task's."""
        ...


def report_refusal(state: ServerState, call: Call, error: DraftlineError, client_id: str = "") -> None:
    """Report a call, or a message of it that the client names ``client_id``, which ``error`` refuses as no request."""
    report = ReportBuilder(state.observers, call.origin, state.next_id(), client_id)
    report.finish(call.outcome(error), str(error))


@contextmanager
def counted(state: ServerState, call: Call, client_id: str) -> Iterator[None]:
    """Count a call that is no request of the engine against the limits of the caller's token, and report it.

    Args:
        state: of the server.
        call: the call.
        client_id: the client's name for it; may be empty.

    Raises:
        QueueFullError: the call would exceed a limit of the caller's token.
    """
    report = ReportBuilder(state.observers, call.origin, state.next_id(), client_id)
    admitted = False
    try:
        call.caller.admit()
        admitted = True
        yield
    except BaseException as error:
        report.finish(call.outcome(error), str(error) if isinstance(error, DraftlineError) else "")
        raise
    finally:
        if admitted:
            call.caller.release()
    report.finish(OK)


class InFlightRequest:
    """One request, from its arrival to its end. A context manager that closes the request on exit.

    Attributes:
        client_id: the client's name for the request; may be empty.

    Example:
        >>> with InFlightRequest(state, call, "s7", client_id="", mailbox=Mailbox(state.hub)) as request:
        ...     engine = request.admit()
        ...     await request.submit(wanted)
        ...     async for update in request.updates():
        ...         await send(update)
    """

    def __init__(self, state: ServerState, call: Call, request_id: str, client_id: str, mailbox: Mailbox) -> None:
        """A request that has arrived.

        Args:
            state: of the server.
            call: the call that brought the request.
            request_id: the server's name for the request, unique over all calls.
            client_id: the client's name for the request; may be empty.
            mailbox: receives the request's updates. Several requests may share it.
        """
        self._state = state
        self._call = call
        self._request_id = request_id
        self.client_id = client_id
        self._mailbox = mailbox
        self._report = ReportBuilder(state.observers, call.origin, request_id, client_id)
        self._engine: EngineClient | None = None
        self._outputs_left = 0
        self._preparation: asyncio.Timeout | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._early_end: FinishReason | Exception | None = None  # before the engine has the request
        self._closed = False

    def admit(self) -> EngineClient:
        """Let the request in.

        Raises:
            EngineStoppedError: the model is still loading, or the server is draining.
            QueueFullError: the request would exceed a limit of the caller's token.
        """
        self._engine = self._state.admit(self._call.caller)
        self._state.requests[self._request_id] = self
        return self._engine

    async def submit(self, request: GenerateRequest, first: Preparation = as_it_is) -> GenerateRequest:
        """Submit the admitted request to the engine, unless it is ended before.

        Args:
            request: the request.
            first: prepares it, before its constraint is compiled. The request may be ended meanwhile.

        Returns:
            The request as the engine has it, or as it was if it was ended before.

        Raises:
            DraftlineError: the engine refuses the request; see `EngineClient.submit`.
        """
        assert self._engine is not None, "admit() comes first"
        self._report.operation = "chat" if isinstance(request.prompt, Chat) else "text_completion"
        # Before submitting: the first update may come before submit() returns.
        self._outputs_left = request.sampling.n
        request = self._call.caller.within_limits(request, self._call.origin.peer)
        started = time.monotonic()
        request = await self._prepared(request, self._engine, first)
        if self._early_end is not None:
            end, waited_s = self._early_end, time.monotonic() - started
            updates = [Failed(end)] if isinstance(end, Exception) else _ends(request, end, self._engine, waited_s)
            self._mailbox.put([(self._request_id, update) for update in updates])
            return request
        submitted = self._engine.submit(self._request_id, request, self._mailbox.sink)
        # Without a pause since the engine's own submit(), so that no update is taken before.
        self._mailbox.read_with(self._request_id, submitted.reader)
        self._report.submitted = True
        self._deadline = self._mailbox.fail_in_time(self._request_id, request)
        return request

    def cancel(self) -> bool:
        """End the admitted request: its outputs finish with CANCELLED.

        Returns:
            Whether it was running, or about to.
        """
        if self._report.submitted:
            assert self._engine is not None, "submit() needs it"
            return self._engine.cancel(self._request_id)
        self._end_early(FinishReason.CANCELLED)
        return True

    def fail(self, error: Exception) -> None:
        """End the admitted request with an error, which its updates bring."""
        if self._report.submitted:
            self._mailbox.put([(self._request_id, Failed(error))])
        else:
            self._end_early(error)

    async def _prepared(self, request: GenerateRequest, engine: EngineClient, first: Preparation) -> GenerateRequest:
        """The request as the engine takes it at once, or as it is if it is ended before."""
        if self._early_end is not None:
            return request
        try:
            async with asyncio.timeout(None) as self._preparation:  # `_end_early` lets it run out
                return await prepared(engine, self._state.tokenizers, request, first)
        except TimeoutError:
            if self._early_end is None:
                raise
            return request
        finally:
            self._preparation = None

    def _end_early(self, end: FinishReason | Exception) -> None:
        if self._early_end is None:
            self._early_end = end
            if self._preparation is not None:
                self._preparation.reschedule(self._state.hub.loop.time())

    def note(self, update: Update) -> bool:
        """Record an update of the request. True if it is the last one."""
        self._report.note(update)
        self._outputs_left = 0 if update.ends_request else self._outputs_left - update.ends_output
        return not self._outputs_left

    async def updates(self) -> AsyncIterator[Delta | Finished]:
        """The request's updates up to the last one. The request must have its mailbox to itself.

        Raises:
            Exception: the fault that ended the request.
        """
        async for _, update in self._mailbox:
            is_last = self.note(update)
            if isinstance(update, Failed):
                raise update.error
            yield update
            if is_last:
                return

    def close(self, error: BaseException | None = None) -> None:
        """End the request, because of ``error`` or because all outputs have ended. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._deadline is not None:
            self._deadline.cancel()
        self._state.requests.pop(self._request_id, None)
        if self._engine is not None:
            if self._outputs_left or error is not None:  # a fault of the reading ends nothing in the engine
                self._engine.cancel(self._request_id)
            self._state.release(self._call.caller)
        reason = str(error) if isinstance(error, DraftlineError) else ""
        self._report.finish(OK if error is None else self._call.outcome(error), reason)

    def __enter__(self) -> Self:
        """The request itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the request."""
        self.close(error)


def _ends(
    request: GenerateRequest, reason: FinishReason, engine: EngineClient, waited_s: float
) -> Sequence[Failed | Finished]:
    """The ends of the outputs of a request that ended before the engine had it, ``waited_s`` after its submission."""
    return [
        Finished(
            index=index,
            finish_reason=reason,
            matched_stop="",
            usage=Usage(0, 0, 0),
            speculation=SpeculationStats(),
            timing=Timing(queued_s=waited_s, prefill_s=0.0, first_token_s=waited_s, total_s=waited_s),
            constraint_complete=None,
            seed=request.sampling.seed or 0,
            system_fingerprint=engine.info.system_fingerprint,
        )
        for index in range(request.sampling.n)
    ]
