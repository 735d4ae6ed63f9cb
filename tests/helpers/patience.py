"""How long tests wait: for events, and not for seconds that a busy machine does not keep."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

PATIENCE_S = 240.0
"""Only what hangs takes so long: a test takes twenty times its usual time where thirty processes share two cores."""

DEADLINE_S = 1.5
"""A deadline that must pass, but not before what a test does in some hundredths of a second ahead of it."""


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait for another thread or process. Raises: TimeoutError: it hangs."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError("what the test waits for does not come")
        time.sleep(0.02)


async def until(holds: Callable[[], bool]) -> None:
    """`wait_until`, without holding up the event loop."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.005)
