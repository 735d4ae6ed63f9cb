"""Mailboxes carry updates from the step thread to the readers of streams. Unread deltas of an output merge.

The step thread must never wait for a reader, and a slow reader must not make memory grow. gRPC's flow control blocks a
sender only after about 4 MB, so it ensures neither. A `Mailbox` therefore holds at most one delta and one end for each
output. It does not depend on gRPC or protobuf.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress

from draftline.engine.errors import DeadlineExceededError
from draftline.engine.outputs import Delta, Failed, Finished, Update
from draftline.engine.protocol import GenerateRequest, UpdateReader

Updates = Sequence[tuple[str, Update]]
"""(request id, update) pairs of one step."""

_DELTA, _END, _FAILURE = range(3)

_Key = tuple[str, int, int]
"""Request id, output index, and kind. The kind is no enum, because the hash of an enum's member is computed in
Python."""

_MAX_PARTS = 64
"""Unread deltas of one output before they are merged. Unmerged, an object per token takes more memory than the
token."""

_MAX_LOOP_SHARE = 0.5
"""Maximum share of the time that the loop's thread may be busy while there are always updates."""

_MAX_DELAY_S = 0.2
"""The longest delay of a delivery. The thread may have been busy with something else, while there were no updates."""


class Hub:
    """Delivers updates to all mailboxes of one event loop, with at most one wake-up of the loop per step.

    Only one thread runs Python at a time. With hundreds of streams, to send each token on its own would take longer
    than a step. The step thread would then wait for the interpreter while the device is idle. So a delivery is delayed
    if the loop's thread was busy for more than its share of the time since the last one. Streams then get several
    tokens at once.

    Attributes:
        loop: the event loop on which the mailboxes are read.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """A hub that has delivered nothing yet."""
        self.loop = loop
        self._arrivals: deque[tuple[Mailbox, Updates]] = deque()
        self._waking = False
        self._last = (-math.inf, 0.0)  # the last delivery: the loop's time, and the CPU time of its thread
        self._latest = math.inf  # when the next one must be made, if it is delayed

    def post(self, mailbox: Mailbox, updates: Updates) -> None:
        """Post one step's updates of one mailbox, from any thread. Returns at once and never raises."""
        # This appends before it reads the flag; `_deliver` clears the flag before it empties the queue. So either a
        # wake-up that is still to come delivers these updates, or this schedules one.
        self._arrivals.append((mailbox, updates))
        if not self._waking:
            self._waking = True
            with suppress(RuntimeError):  # the loop has closed, so there are no readers
                self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        # Until the thread's share allows a delivery, further updates join this one: the flag stays set.
        now, busy = self.loop.time(), time.thread_time()
        self._latest = min(self._latest, now + _MAX_DELAY_S)
        earliest = min(self._latest, self._last[0] + (busy - self._last[1]) / _MAX_LOOP_SHARE)
        if now < earliest:
            self.loop.call_at(earliest, self._deliver)
            return

        self._latest = math.inf
        self._last = (now, busy)
        self._waking = False
        while self._arrivals:
            mailbox, updates = self._arrivals.popleft()
            mailbox.put(updates)


class Mailbox:
    """The unread updates of one stream, which are in order for each request. One reader, on the hub's loop.

    Deltas are merged as the engine writes them. What they say is read when they are taken, on the loop's thread.
    """

    def __init__(self, hub: Hub) -> None:
        """Create an open, empty mailbox."""
        self._hub = hub
        # In order of arrival. An output's delta and its end have different keys, so that the delta can be merged alone.
        # The end cannot overtake the delta, because no delta arrives after the end.
        self._unread: OrderedDict[_Key, list[Delta] | Finished | Failed] = OrderedDict()
        self._readers: dict[str, UpdateReader] = {}
        self._changed = asyncio.Event()
        self._closed = False

    def read_with(self, request_id: str, reader: UpdateReader) -> None:
        """Read a request's updates with ``reader``, before its first one is taken."""
        self._readers[request_id] = reader

    def sink(self, updates: Updates) -> None:
        """Post updates from the step thread. This is the `Sink` of the stream's requests."""
        self._hub.post(self, updates)

    def put(self, updates: Updates) -> None:
        """Add updates. Called on the loop's thread."""
        for request_id, update in updates:
            match update:
                case Delta():
                    key = (request_id, update.index, _DELTA)
                    unread = self._unread.get(key)
                    if isinstance(unread, list):
                        unread.append(update)
                        if len(unread) == _MAX_PARTS:
                            unread[:] = [Delta.merge(unread)]
                    else:
                        self._unread[key] = [update]
                case Finished():
                    self._unread[request_id, update.index, _END] = update
                case Failed():
                    self._unread[request_id, 0, _FAILURE] = update
        self._changed.set()

    def fail_in_time(self, request_id: str, request: GenerateRequest) -> asyncio.TimerHandle | None:
        """Fail a request that was submitted just now once its timeout is over.

        The engine ends it in time, too, unless a step of it hangs.

        Returns:
            What to cancel when the request has ended; None without a timeout.
        """
        if request.timeout_s is None:
            return None
        left_s = request.timeout_s - request.constraint_compile_s
        return self._hub.loop.call_later(left_s, self.put, [(request_id, Failed(DeadlineExceededError()))])

    def close(self) -> None:
        """End the iteration once all updates are read."""
        self._closed = True
        self._changed.set()

    def __len__(self) -> int:
        """The number of unread updates, where merged deltas count as one."""
        return len(self._unread)

    async def take(self) -> list[tuple[str, Update]]:
        """All unread updates, at least one. Waits until there are some. Empty once the mailbox is closed and empty."""
        taken: list[tuple[str, Update]] = []
        while not taken and await self._has_unread():
            while self._unread:
                taken += self._take_first()
        return taken

    async def __aiter__(self) -> AsyncIterator[tuple[str, Update]]:
        """Yield (request id, update) pairs until the mailbox is closed and empty."""
        while await self._has_unread():
            for pair in self._take_first():
                yield pair

    async def _has_unread(self) -> bool:
        """Wait until there are unread updates. False once the mailbox is closed and empty."""
        while not self._unread:
            if self._closed:
                return False
            self._changed.clear()
            await self._changed.wait()
        return True

    def _take_first(self) -> Iterable[tuple[str, Update]]:
        """Remove the first unread update, and read it."""
        (request_id, _, _), unread = self._unread.popitem(last=False)
        update = Delta.merge(unread) if isinstance(unread, list) else unread
        reader = self._readers.get(request_id)
        if reader is None:
            return ((request_id, update),)
        read = reader.read(update)
        if reader.is_over:
            del self._readers[request_id]
        return [(request_id, each) for each in read]
