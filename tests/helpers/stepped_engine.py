"""A real engine with the tiny model. It makes its steps one by one, as a test allows them."""

from __future__ import annotations

import asyncio
import threading
import time

from patience import PATIENCE_S
from tiny import tiny_core

from draftline.engine.threaded_engine import ThreadedEngine


class SteppedEngine(ThreadedEngine):
    """A real engine that makes only the steps that it is allowed to make."""

    def __init__(self, num_slots: int = 8, **limits: int) -> None:
        self._allowed = threading.Semaphore(0)
        self._released = False
        self._made = threading.Semaphore(0)
        self._cancelled: list[str] = []
        self._ahead_s = 0.0
        core = tiny_core(num_slots=num_slots)
        core.now = lambda: time.monotonic() + self._ahead_s
        step = core.step

        def held_step() -> None:
            if not self._released:
                self._allowed.acquire()
            step()
            core.check()
            self._made.release()

        core.step = held_step  # type: ignore[method-assign]
        super().__init__(core, **{"max_waiting": 64, "max_waiting_tokens": 4096, **limits}, ageing_s=5.0)

    def cancel(self, request_id: str) -> bool:
        running = super().cancel(request_id)
        if running:
            self._cancelled.append(request_id)
        return running

    async def cancels(self, count: int) -> None:
        """Wait until the server has cancelled ``count`` requests."""
        while len(set(self._cancelled)) < count:
            await asyncio.sleep(0.001)

    def forget_cancels(self) -> None:
        """Count cancelled requests from here on."""
        self._cancelled.clear()

    def let_pass(self, seconds: float) -> None:
        """Advance the engine's clock."""
        self._ahead_s += seconds

    async def steps(self, count: int) -> None:
        """Let the engine make ``count`` steps. There must be requests."""
        for _ in range(count):
            self._allowed.release()
            assert await asyncio.to_thread(self._made.acquire, timeout=PATIENCE_S), "the engine has nothing to do"

    def release(self) -> None:
        """Let the engine make all steps from now on."""
        self._released = True
        self._allowed.release()  # a step that waits

    async def freed(self) -> None:
        """Wait until no sequence holds a block. The engine reports it after the step that frees the last one."""
        while self.taken_blocks:
            await asyncio.sleep(0.001)

    @property
    def taken_blocks(self) -> int:
        stats = self.stats()
        return stats.total_blocks - stats.free_blocks - stats.cached_blocks
