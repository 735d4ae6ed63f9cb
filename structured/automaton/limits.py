"""Bounds on compiling one regular expression."""

from __future__ import annotations

from dataclasses import dataclass

from draftline.structured.worker_processes import KEPT_BYTES

MAX_PARTS_BYTES = 64 << 10
"""The most bytes of the regular expressions inside a structural tag that has an automaton."""


class AutomatonTooLargeError(Exception):
    """Compiling the automaton would exceed a limit of size, time or memory."""


@dataclass(frozen=True, slots=True)
class AutomatonLimits:
    """Bounds on one automaton. A constraint that exceeds one of them is enforced by a grammar instead.

    Attributes:
        regex_bytes: length of the regular expression in UTF-8.
        seconds: processor time to compile. The limit by the clock is 24 times as long.
        memory_bytes: memory of the worker process.
        parts_bytes: length of all regular expressions of a structural tag.
        states: states over bytes, before minimisation.
        table_bytes: size of the finished tables.
        awaited_states: the most states over bytes for which the first output waits for the tables. Of a larger automaton,
            the first outputs start on the host, and the tables are built meanwhile.
        kept_bytes: a worker process that holds more memory than this after a job ends, and another one takes its place.
    """

    regex_bytes: int = 1 << 20
    seconds: float = 2.5
    parts_bytes: int = MAX_PARTS_BYTES
    memory_bytes: int = 3 << 30
    states: int = 50_000
    table_bytes: int = 32 << 20
    awaited_states: int = 2_000
    kept_bytes: int = KEPT_BYTES
