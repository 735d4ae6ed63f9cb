"""``StreamWriter``: writes the messages of one call, and gives up if the client has stopped reading.

gRPC buffers about 4 MB that a slow client leaves unread. Then a write waits, without limit. A client that reads nothing
for a while has stalled, and its requests are no longer worth computing.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from draftline.engine.errors import StalledReaderError

_MessageT_contra = TypeVar("_MessageT_contra", contravariant=True)


class Writable(Protocol[_MessageT_contra]):
    """The part of a call's context that a `StreamWriter` uses."""

    async def send_initial_metadata(self, metadata: tuple[tuple[str, str], ...], /) -> None:
        """Accept the call."""
        ...

    async def write(self, message: _MessageT_contra, /) -> None:
        """Write a message, as soon as there is room for it."""
        ...


class StreamWriter(Generic[_MessageT_contra]):
    """Writes one message at a time, for any number of tasks.

    A context manager that stops the watch for stalls on exit.
    """

    def __init__(self, call: Writable[_MessageT_contra], stall_timeout: float) -> None:
        """``stall_timeout`` is the longest time in seconds that a message may wait for its reader."""
        self._call = call
        self._stall_timeout = stall_timeout
        self._begun = False
        self._loop = asyncio.get_running_loop()
        self._lock = asyncio.Lock()
        self._writing: asyncio.Task[object] | None = None
        self._since = 0.0
        self._stalled = False
        # One timer that checks now and then: a timeout for each write would cost a tenth of the write itself.
        self._timer: asyncio.TimerHandle | None = None

    async def begin(self) -> None:
        """Accept the stream, unless that is done. The first message does it by itself.

        Else gRPC would accept it with that message. If the message stalled, gRPC could not end the call.
        """
        if not self._begun:
            self._begun = True
            await self._call.send_initial_metadata(())

    async def write(self, message: _MessageT_contra) -> None:
        """Write a message.

        Raises:
            StalledReaderError: the client has stopped reading.
        """
        async with self._lock:
            self._writing, self._since = asyncio.current_task(), self._loop.time()
            if self._timer is None:
                self._timer = self._loop.call_later(self._stall_timeout, self._check)
            try:
                await self.begin()
                await self._call.write(message)
            except asyncio.CancelledError:
                if self._stalled and self._writing is not None and not self._writing.uncancel():
                    raise StalledReaderError(f"nothing was read for {self._stall_timeout:g} s") from None
                raise
            finally:
                self._writing = None

    def close(self) -> None:
        """Stop the watch for stalls, after the last write."""
        if self._timer is not None:
            self._timer.cancel()

    def __enter__(self) -> Self:
        """The writer itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the writer."""
        self.close()

    def _check(self) -> None:
        waited = self._loop.time() - self._since if self._writing is not None else 0.0
        if self._writing is None or waited < self._stall_timeout:
            self._timer = self._loop.call_later(self._stall_timeout - waited, self._check)
            return
        self._stalled = True
        self._writing.cancel()
