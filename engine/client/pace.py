"""``Pacer``: how many requests of one client are in flight, which is as many as the server takes from it.

The server's limits hold for a token, and a client does not know them. It sends all it has. Where the server refuses a
request, the client keeps no more in flight than were taken, and tries one more now and then: additive increase, and a
decrease to what is known to be taken.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Iterable
from typing import Any

from draftline.engine.errors import QueueFullError


class Pacer:
    """The turns of one client's requests. Only its event loop may use it.

    Attributes:
        finished: how many requests the server has taken and finished.
    """

    def __init__(self) -> None:
        """Every request may go at once."""
        self.finished = 0
        self._limit = math.inf
        self._in_flight = 0
        self._not_before = 0.0
        self._turns: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def enter(self, stops: Iterable[asyncio.Future[Exception | None]], timeout: float | None) -> bool:
        """Wait for a turn, first come, first served. `leave` gives it back.

        Args:
            stops: futures that end the wait.
            timeout: the longest wait in seconds.

        Returns:
            Whether there is a turn: not if the wait was ended.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns.append(turn)
        self._give_turns()
        try:
            if not turn.done():
                waited: set[asyncio.Future[Any]] = {turn, *stops}
                await asyncio.wait(waited, timeout=timeout, return_when="FIRST_COMPLETED")
        except BaseException:
            self._drop(turn)
            raise
        if not turn.done():
            self._drop(turn)
            return False
        return True

    def leave(self, error: Exception | None) -> None:
        """End a turn, with the error that ended the request; None if it finished."""
        self._in_flight -= 1
        if isinstance(error, QueueFullError):
            self._limit = max(1, min(self._limit, self._in_flight))
            self._not_before = max(self._not_before, now() + error.retry_after_s)
        elif error is None:
            self.finished += 1
            self._limit += 1 / self._limit
            self._not_before = 0.0  # there is room again, perhaps
        self._give_turns()

    def _drop(self, turn: asyncio.Future[None]) -> None:
        if turn.done():
            self._in_flight -= 1
            self._give_turns()
        else:
            self._turns.remove(turn)

    def _give_turns(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wait = self._not_before - now()
        if wait > 0:
            if self._turns:
                self._timer = asyncio.get_running_loop().call_later(wait, self._give_turns)
            return
        while self._turns and self._in_flight < math.floor(min(self._limit, 1 << 30)):
            self._in_flight += 1
            self._turns.popleft().set_result(None)


def now() -> float:
    """The clock of the running event loop, in seconds."""
    return asyncio.get_running_loop().time()
