"""``OfflineTarget``: an engine in this process, without a server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Self

from typing_extensions import override

from draftline import __version__
from draftline.engine.bench.load.answers import Answer
from draftline.engine.bench.readiness import wait_until_ready
from draftline.engine.bench.targets.target import Question, RequestError, Target, TargetInfo
from draftline.engine.bench.targets.updates import as_request_error, record, request_of
from draftline.engine.config import EngineConfig
from draftline.engine.errors import DraftlineError
from draftline.engine.outputs import Update
from draftline.engine.protocol import EngineClient
from draftline.engine.stats import DevicePeak, WorkCounts
from draftline.engine.threaded_engine import ThreadedEngine, start_engine


class OfflineTarget(Target):
    """An engine. The times of tokens are those of the step thread, when it delivers them."""

    def __init__(self, engine: ThreadedEngine, config: EngineConfig) -> None:
        """Measure ``engine``, and close it at the end."""
        self.engine: EngineClient = engine
        self._close = engine.close
        self._names = (f"bench-{serial}" for serial in count())
        info = engine.info
        details: dict[str, object] = {
            "system_fingerprint": info.system_fingerprint,
            "quantization": info.quantization,
            "options": config.model_dump(mode="json", exclude_defaults=True, exclude={"model"}),
        }
        self.info = TargetInfo(
            protocol="offline",
            engine="draftline",
            version=__version__,
            model=info.model,
            device=info.device,
            dtype=info.dtype,
            vocab_size=info.config.vocab_size,
            max_model_len=info.max_model_len,
            form="tokens",
            details=details,
        )

    @classmethod
    async def start(cls, config: EngineConfig) -> Self:
        """Start an engine.

        Raises:
            ModelLoadError: the model cannot be loaded.
        """
        return cls(await asyncio.to_thread(start_engine, config), config)

    @override
    async def ready(self) -> None:
        await asyncio.to_thread(wait_until_ready, self.engine.stats)

    @override
    async def ask(self, question: Question, answer: Answer) -> None:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def end(error: RequestError | None) -> None:
            if ended.done():
                return
            if error is None:
                ended.set_result(None)
            else:
                ended.set_exception(error)

        def sink(updates: Sequence[tuple[str, Update]]) -> None:  # on the step thread
            now, over, error = time.perf_counter(), False, None
            for _, update in updates:
                try:
                    over = record(answer, update, now) or over
                except RequestError as failed:
                    over, error = True, failed
            if over:
                with suppress(RuntimeError):  # the loop has closed
                    loop.call_soon_threadsafe(end, error)

        name = next(self._names)
        try:
            self.engine.submit(name, request_of(question), sink)
        except DraftlineError as error:
            raise as_request_error(error) from error
        try:
            await ended
        finally:
            if ended.cancelled():
                self.engine.cancel(name)

    @override
    async def work(self) -> WorkCounts:
        return self.engine.stats().work

    @override
    def peak(self) -> DevicePeak | None:
        return self.engine.info.peak

    @override
    async def close(self) -> None:
        await asyncio.to_thread(self._close)
