"""``closed_loop``: an engine's updates of many requests, of which a fixed number is in flight."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence

from draftline.engine.outputs import Delta, Failed, Finished, Update
from draftline.engine.protocol import EngineClient, GenerateRequest


def closed_loop(
    engine: EngineClient, requests: Sequence[GenerateRequest], concurrency: int
) -> Iterator[tuple[int, Delta | Finished]]:
    """Answer all requests, ``concurrency`` of them at a time; yields each update with the index of its request.

    Raises:
        RuntimeError: a request failed.
    """
    inbox: queue.SimpleQueue[tuple[str, Update]] = queue.SimpleQueue()

    def sink(updates: Sequence[tuple[str, Update]]) -> None:
        for update in updates:
            inbox.put(update)

    submitted = finished = 0
    while finished < len(requests):
        while submitted < len(requests) and submitted - finished < concurrency:
            engine.submit(str(submitted), requests[submitted], sink)
            submitted += 1
        name, update = inbox.get()
        match update:
            case Failed():
                raise RuntimeError(f"request {name} failed") from update.error
            case Delta() | Finished():
                finished += update.ends_output
                yield int(name), update
