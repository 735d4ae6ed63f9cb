"""From the step thread to the readers of streams: one wake-up of the event loop a step, and deltas that merge unread.

The step thread must never wait for a reader, and memory must not grow with what a slow reader has left unread: gRPC's
flow control blocks a sender only after about 4 MB, so it protects neither. A `Mailbox` therefore holds at most one
delta and one end for each output, however long its reader takes. It knows nothing of gRPC or protobuf.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from draftline.engine.outputs import Delta, Failed, Finished, Update

Updates = Sequence[tuple[str, Update]]
"""(request id, update) pairs of one step."""


_DELTA, _END, _FAILURE = range(3)

_Key = tuple[str, int, int]
"""Request id, output, and what it is. (No enum: its members' hashes are computed in Python.)"""

_MOST_PARTS = 64
"""Unread deltas of one output, before they are merged: an object each takes more memory than its token."""

_SHARE = 0.5
"""How much of the time the loop's thread may take while there is always news."""


class Hub:
    """Brings all mailboxes of one event loop their updates, in one wake-up of the loop a step or less.

    Only one thread runs Python at a time. With some hundred streams, sending each token on its own would take longer than
    a step, and the step thread would wait for its turn while the device has nothing to do. So news waits where the loop's
    thread was busy for more than its share of the time since the last: streams then get several tokens at once.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """``loop`` is where the mailboxes are read."""
        self._loop = loop
        self._arrivals: deque[tuple[Mailbox, Updates]] = deque()
        self._waking = False
        self._last = (-math.inf, 0.0)  # when news was last delivered, and the thread's own time by then

    def post(self, mailbox: Mailbox, updates: Updates) -> None:
        """Hand over one step's updates of one mailbox, from any thread; returns at once and never raises."""
        # Append before looking at the flag, and below clear the flag before emptying: so whatever is appended either
        # is seen by a wake-up that is still to come, or schedules one itself.
        self._arrivals.append((mailbox, updates))
        if not self._waking:
            self._waking = True
            with suppress(RuntimeError):  # the loop has closed: nobody is left to read
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        now, busy = self._loop.time(), time.thread_time()
        soonest = self._last[0] + (busy - self._last[1]) / _SHARE
        if now < soonest:
            self._loop.call_at(soonest, self._deliver)
            return
        self._last = (now, busy)
        self._waking = False
        while self._arrivals:
            mailbox, updates = self._arrivals.popleft()
            mailbox.put(updates)


class Mailbox:
    """The unread updates of one stream's requests, in the order of each request. One reader, on the hub's loop."""

    def __init__(self, hub: Hub) -> None:
        """An open mailbox with nothing in it."""
        self._hub = hub
        # In the order in which they came. An output's delta and what ends it lie in different places, so that the one
        # still merges while the other is there, and neither overtakes: nothing comes after an end.
        self._unread: OrderedDict[_Key, list[Delta] | Finished | Failed] = OrderedDict()
        self._changed = asyncio.Event()
        self._closed = False

    def sink(self, updates: Updates) -> None:
        """The `Sink` to submit requests with: called on the step thread."""
        self._hub.post(self, updates)

    def put(self, updates: Updates) -> None:
        """Add updates, on the loop's thread."""
        for request_id, update in updates:
            match update:
                case Delta():
                    key = (request_id, update.index, _DELTA)
                    unread = self._unread.get(key)
                    if isinstance(unread, list):
                        unread.append(update)
                        if len(unread) == _MOST_PARTS:
                            unread[:] = [Delta.merge(unread)]
                    else:
                        self._unread[key] = [update]
                case Finished():
                    self._unread[request_id, update.index, _END] = update
                case Failed():
                    self._unread[request_id, 0, _FAILURE] = update
        self._changed.set()

    def close(self) -> None:
        """Let the iteration end once everything is read."""
        self._closed = True
        self._changed.set()

    def __len__(self) -> int:
        """Updates unread, merged as they are."""
        return len(self._unread)

    async def __aiter__(self) -> AsyncIterator[tuple[str, Update]]:
        """(request id, update) pairs, until the mailbox is closed and empty."""
        while True:
            while self._unread:
                (request_id, _, _), unread = self._unread.popitem(last=False)
                yield request_id, Delta.merge(unread) if isinstance(unread, list) else unread
            if self._closed:
                return
            self._changed.clear()
            await self._changed.wait()
