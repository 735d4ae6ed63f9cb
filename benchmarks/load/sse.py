"""Many concurrent SSE streams over HTTP, each on a connection of its own.

The client reads bytes and counts events: a client that parsed each event would be slower than the server.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Sequence
from typing import Any

from draftline.engine.bench.batches import OfflineWorkload
from load.rounds import Sent, best_round

_USAGE = re.compile(rb'"completion_tokens":(\d+)')


async def sse_streams(address: str, bodies: Sequence[bytes]) -> Sent:
    """Send all requests at once.

    Raises:
        RuntimeError: a request got an error.
    """
    host, _, port = address.rpartition(":")
    connections = [await asyncio.open_connection(host, int(port), limit=1 << 24) for _ in bodies]
    start = time.perf_counter()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> tuple[int, int]:
        head = f"POST /v1/completions HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        received = await reader.read()
        writer.close()
        usage = _USAGE.findall(received)
        if not usage:
            raise RuntimeError(f"a request got {received[:500]!r}")
        # An event with the end and one with the usage have no tokens.
        return int(usage[-1]), max(received.count(b"data: {") - 2, 1)

    pairs = zip(connections, bodies, strict=True)
    counts = await asyncio.gather(*(one(reader, writer, body) for (reader, writer), body in pairs))
    tokens, events = map(sum, zip(*counts, strict=True))
    return Sent(tokens, events, time.perf_counter() - start)


def measure_sse(address: str, workload: OfflineWorkload, vocab_size: int, best_of: int, server: int) -> dict[str, Any]:
    """Measure one SSE stream for each request; see `best_round`."""
    bodies = [
        json.dumps(
            {
                "prompt": list(each.prompt),
                "max_tokens": each.output_len,
                "ignore_eos": True,
                "temperature": 0,
                "seed": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        ).encode()
        for each in workload.draw(vocab_size)
    ]
    return best_round(workload, "sse_streams", lambda: sse_streams(address, bodies), best_of, server)
