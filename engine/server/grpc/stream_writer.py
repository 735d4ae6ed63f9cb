"""``StreamWriter``: one call's way to its client, given up where the client has stopped reading.

gRPC takes what a slow client leaves unread until its buffers are full (about 4 MB), and then a write waits, however long
that is. A client that takes nothing at all for a while has stalled: what it asked for is no longer worth computing.
"""

from __future__ import annotations

import asyncio
from typing import Generic, Protocol, TypeVar

from draftline.engine.errors import StalledReaderError

_MessageT_contra = TypeVar("_MessageT_contra", contravariant=True)


class Writable(Protocol[_MessageT_contra]):
    """What a `StreamWriter` needs of a call's context."""

    async def write(self, message: _MessageT_contra, /) -> None:
        """Write a message, as soon as there is room for it."""
        ...


class StreamWriter(Generic[_MessageT_contra]):
    """Writes one message at a time, whoever asks."""

    def __init__(self, call: Writable[_MessageT_contra], stall_timeout: float) -> None:
        """``stall_timeout`` is how long, in seconds, a message may wait for its reader."""
        self._call = call
        self._stall_timeout = stall_timeout
        self._loop = asyncio.get_running_loop()
        self._lock = asyncio.Lock()
        self._writing: asyncio.Task[object] | None = None
        self._since = 0.0
        self._stalled = False
        # One timer that looks now and then, where a timeout a write would cost a tenth of the write itself.
        self._timer: asyncio.TimerHandle | None = None

    async def write(self, message: _MessageT_contra) -> None:
        """Write a message.

        Raises:
            StalledReaderError: the client takes nothing.
        """
        async with self._lock:
            self._writing, self._since = asyncio.current_task(), self._loop.time()
            if self._timer is None:
                self._timer = self._loop.call_later(self._stall_timeout, self._look)
            try:
                await self._call.write(message)
            except asyncio.CancelledError:
                if self._stalled and self._writing is not None and not self._writing.uncancel():
                    raise StalledReaderError(f"nothing was read for {self._stall_timeout:g} s") from None
                raise
            finally:
                self._writing = None

    def close(self) -> None:
        """Stop looking; there is nothing more to write."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        waited = self._loop.time() - self._since if self._writing is not None else 0.0
        if self._writing is None or waited < self._stall_timeout:
            self._timer = self._loop.call_later(self._stall_timeout - waited, self._look)
            return
        self._stalled = True
        self._writing.cancel()
