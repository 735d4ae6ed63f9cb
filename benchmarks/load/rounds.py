"""Rounds of one workload sent in one way: the best one, and the processor time that it took the server."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from draftline.engine.bench.batches import OfflineWorkload


class Sent(NamedTuple):
    """What a round received: tokens, and the messages with tokens that brought them, in this many seconds."""

    tokens: int
    messages: int
    seconds: float


Send = Callable[[], Coroutine[Any, Any, Sent]]


def cpu_seconds(pid: int) -> float:
    """The processor time of a process so far, without its children's."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def best_round(workload: OfflineWorkload, way: str, send: Send, best_of: int, server: int) -> dict[str, Any]:
    """Send a workload ``best_of`` times after a first time that warms up.

    Args:
        workload: what is sent.
        way: the name of how it is sent.
        send: sends it.
        best_of: rounds.
        server: the process id of the server, whose processor time is measured.

    Raises:
        RuntimeError: other than the expected number of tokens arrived.
    """
    expected = workload.requests * workload.output_len[1]
    rounds = []
    for _ in range(best_of + 1):
        before = cpu_seconds(server)
        sent = uvloop.run(send())
        time.sleep(0.05)  # the last connections close
        if sent.tokens != expected:
            raise RuntimeError(f"{way}: {sent.tokens} tokens instead of {expected}")
        rounds.append((sent.seconds, sent, cpu_seconds(server) - before))
    seconds, sent, busy = min(rounds[1:])
    return {
        "workload": workload.name,
        "way": way,
        "seconds": seconds,
        "tokens_per_s": expected / seconds,
        "tokens_a_message": round(expected / sent.messages, 2),
        "server_cpu_us_a_token": round(busy / expected * 1e6, 2),
    }
