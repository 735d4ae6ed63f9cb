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

import uvloop
from common.workloads import Workload

_USAGE = re.compile(rb'"completion_tokens":(\d+)')


async def sse_streams(address: str, bodies: Sequence[bytes]) -> tuple[list[tuple[int, int]], float]:
    """Send all requests at once; return the numbers of tokens and of events with text of each, and the seconds in all.

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
        return int(usage[-1]), received.count(b"data: {")

    pairs = zip(connections, bodies, strict=True)
    counts = await asyncio.gather(*(one(reader, writer, body) for (reader, writer), body in pairs))
    seconds = time.perf_counter() - start
    # An event with the end and one with the usage have no tokens.
    return [(tokens, max(events - 2, 1)) for tokens, events in counts], seconds


def measure_sse(address: str, workload: Workload, vocab_size: int, best_of: int) -> dict[str, Any]:
    """Measure one SSE stream for each request: the best of ``best_of`` rounds."""
    drawn = workload.draw(vocab_size)
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
        for each in drawn
    ]
    expected = sum(each.output_len for each in drawn)
    rounds = []
    for _ in range(best_of + 1):  # the first warms up
        counts, taken = uvloop.run(sse_streams(address, bodies))
        tokens, events = (sum(column) for column in zip(*counts, strict=True))
        if tokens != expected:
            raise RuntimeError(f"{tokens} tokens instead of {expected}")
        rounds.append((taken, tokens / events))
    best, tokens_a_message = min(rounds[1:])
    return {
        "workload": workload.name,
        "way": "sse_streams",
        "seconds": best,
        "tokens_per_s": expected / best,
        "tokens_a_message": round(tokens_a_message, 2),
    }
