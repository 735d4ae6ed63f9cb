"""What a server's process and its engine's process tell each other, pickled, over a socket that only they have."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from draftline.engine.config import EngineConfig
from draftline.engine.errors import EngineStoppedError
from draftline.engine.outputs import Delta, Failed, Finished, PositionLogprobs, Update
from draftline.engine.protocol import EngineInfo, GenerateRequest
from draftline.engine.stats import EngineStats
from draftline.models.config import ModelConfig

DeltaFields = tuple[str, int, tuple[int, ...], str, tuple[PositionLogprobs, ...], tuple[PositionLogprobs, ...]]
"""A request's id, and the fields of a `Delta`."""


@dataclass(frozen=True, slots=True)
class Start:
    """To the engine, first of all: load, and log like this."""

    config: EngineConfig
    log_level: str
    log_format: Literal["text", "json"]


@dataclass(frozen=True, slots=True)
class Opened:
    """From the engine, first of all: what the model is like, which it begins to load."""

    config: ModelConfig


@dataclass(frozen=True, slots=True)
class Started:
    """From the engine, second: it serves."""

    info: EngineInfo
    stats: EngineStats


@dataclass(frozen=True, slots=True)
class Submit:
    """To the engine: queue a request, whose prompt is token ids."""

    request_id: str
    request: GenerateRequest


@dataclass(frozen=True, slots=True)
class Cancel:
    """To the engine: end a request."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Order:
    """To the engine: something to do between two steps, which `Answer` answers by its serial."""

    serial: int
    what: Literal["flush_prefix_cache", "start_profile", "stop_profile"]
    path: Path | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """From the engine: what became of an order."""

    serial: int
    result: object = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class News:
    """From the engine: updates of requests, and its state where that has changed.

    Attributes:
        deltas: each request's id with a `Delta`'s fields: tuples are pickled several times as fast.
        ends: come after the deltas.
        stats: the engine's state.
    """

    deltas: Sequence[DeltaFields]
    ends: Sequence[tuple[str, Finished | Failed]]
    stats: EngineStats | None

    @staticmethod
    def of(updates: Iterable[tuple[str, Update]], stats: EngineStats | None) -> News:
        """Of updates in the order of each request."""
        deltas: list[DeltaFields] = []
        ends: list[tuple[str, Finished | Failed]] = []
        for name, update in updates:
            match update:
                case Delta():
                    fields = (update.index, update.token_ids, update.text, update.logprobs, update.prompt_logprobs)
                    deltas.append((name, *fields))
                case Failed():
                    ends.append((name, Failed(portable(update.error))))
                case Finished():
                    ends.append((name, update))
        return News(deltas, ends, stats)

    def updates(self) -> Iterator[tuple[str, Update]]:
        """The updates, in the order of each request."""
        for name, index, tokens, text, logprobs, prompt_logprobs in self.deltas:
            yield name, Delta(index, tokens, text, logprobs, prompt_logprobs)
        yield from self.ends


@dataclass(frozen=True, slots=True)
class Stopped:
    """From the engine, last of all: why it ended, or None where it was closed. Or it could not start."""

    error: Exception | None


@dataclass(frozen=True, slots=True)
class Close:
    """To the engine: stop after the step in progress."""


ToEngine = Start | Submit | Cancel | Order | Close
FromEngine = Opened | Started | News | Answer | Stopped


def portable(error: Exception) -> Exception:
    """The error if it can be pickled, or one that says as much."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001  whatever its class made of it
        return EngineStoppedError(f"{type(error).__name__}: {error}")
    return error
