"""What compiling one regular expression may cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AutomatonLimits:
    """Bounds on one automaton. Beyond one of them there is none, and a grammar has to do.

    Attributes:
        regex_bytes: length of the regular expression in UTF-8.
        seconds: processor time to compile; four times as long by the clock.
        memory_bytes: memory of the process that compiles.
        states: states over bytes, before any are merged.
        table_bytes: size of the finished tables.
    """

    regex_bytes: int = 1 << 20
    seconds: float = 10.0
    memory_bytes: int = 3 << 30
    states: int = 50_000
    table_bytes: int = 32 << 20
