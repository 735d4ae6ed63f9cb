"""The messages between rank 0 and another rank: pickled, over a socket that only these two have."""

from __future__ import annotations

from dataclasses import dataclass

from draftline.engine.config import EngineConfig


@dataclass(frozen=True, slots=True)
class StartRank:
    """To the rank, the first message.

    Attributes:
        config: the engine's options.
        rank: its number.
        device: that of rank 0.
        store: the file by which the ranks find each other.
        log_level: of its log.
    """

    config: EngineConfig
    rank: int
    device: str
    store: str
    log_level: str


@dataclass(frozen=True, slots=True)
class Ready:
    """From the rank: it waits for its first step."""


@dataclass(frozen=True, slots=True)
class Alive:
    """From the rank, from time to time."""


@dataclass(frozen=True, slots=True)
class Broken:
    """From the rank, the last message: it ends for this reason."""

    error: Exception


FromRank = Ready | Alive | Broken
