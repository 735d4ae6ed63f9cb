"""Server-sent events of one HTTP request, through sse-starlette: comments on long waits.

`protocol.HttpProtocol` closes the connection of a client that does not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from pydantic_core import to_json
from sse_starlette import EventSourceResponse
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from draftline.engine.errors import StalledReaderError
from draftline.engine.outputs import Delta, Finished, RequestOutput
from draftline.engine.server.http.errors import DisconnectedError, error_body
from draftline.engine.server.http.generation import Generation
from draftline.engine.server.http.protocol import STALLED

KEEP_ALIVE_S = 15
"""Seconds of silence after which a comment is sent, so that proxies keep the connection."""

DONE = b"data: [DONE]\n\n"
"""The last event of completions and chats."""

Events = Iterable[bytes]


def event(content: Mapping[str, Any], name: str | None = None) -> bytes:
    """An event with a JSON object as its data."""
    data = event_of(to_json(content))
    return data if name is None else b"event: " + name.encode() + b"\n" + data


def event_of(data: bytes) -> bytes:
    """An event with JSON as its data."""
    return b"data: %b\n\n" % data


class Answer(Protocol):
    """The answer of an endpoint, as events or whole."""

    def begin(self) -> Events:
        """The events before the first update."""
        return ()

    def update(self, prompt: int, update: Delta | Finished) -> Events:
        """The events of an update of the prompt with this index."""
        ...

    def end(self) -> Events:
        """The events after the last update."""
        return (DONE,)

    def fail(self, error: Exception) -> Events:
        """The events of an error that ends the stream."""
        return (event(error_body(error)), DONE)

    def whole(self, outputs: Sequence[RequestOutput[Any]]) -> dict[str, Any]:
        """The answer at once."""
        ...


class EventStream(EventSourceResponse):
    """The events of a generation, which ends with the stream, however the stream ends."""

    def __init__(
        self,
        generation: Generation,
        answer: Answer,
        stall_timeout: float,
    ) -> None:
        """A stream that has not begun.

        Args:
            generation: the started generation.
            answer: makes the events.
            stall_timeout: the seconds without reading after which a connection is closed.
        """
        self._generation = generation
        self._answer = answer
        super().__init__(iter(()), ping=KEEP_ALIVE_S, sep="\n")
        del self.headers["connection"]  # uvicorn says whether the connection stays open
        self._stall_timeout = stall_timeout

    @override
    async def _stream_response(self, send: Send) -> None:
        # In place of sse-starlette's loop over an iterator of events: its layers take longer than to make an event.
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        unsent = [*self._answer.begin()]
        try:
            while self._generation.is_open:
                # One message for all that has arrived: each costs as much as several events.
                if unsent:
                    await send({"type": "http.response.body", "body": b"".join(unsent), "more_body": True})
                    unsent.clear()
                for prompt, update in await self._generation.updates():
                    unsent += self._answer.update(prompt, update)
            unsent += self._answer.end()
        except Exception as error:  # noqa: BLE001  the status has been sent: the error is an event
            self._generation.close(error)
            unsent += self._answer.fail(error)
        async with self._send_lock:  # no comment may follow
            self.active = False
            await send({"type": "http.response.body", "body": b"".join(unsent), "more_body": False})

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reason: BaseException = DisconnectedError()
        try:
            await super().__call__(scope, receive, send)
        except BaseException as error:
            reason = error
            raise
        finally:
            if STALLED in scope["state"]:
                reason = StalledReaderError(f"nothing was read for {self._stall_timeout:g} s")
            self._generation.close(reason)
