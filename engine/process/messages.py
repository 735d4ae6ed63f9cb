"""The messages between the server process and the engine process: pickled, over a socket that only these two have."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from draftline.engine.cache_journal import Event
from draftline.engine.config import EngineConfig
from draftline.engine.errors import EngineStoppedError
from draftline.engine.outputs import Delta, Failed, Finished, PositionLogprobs, Update
from draftline.engine.process.log_format import LogFormat
from draftline.engine.protocol import EngineInfo
from draftline.engine.request.engine_request import EngineRequest
from draftline.engine.stats import EngineStats
from draftline.models.config import ModelConfig

DeltaFields = tuple[str, int, tuple[int, ...], str, tuple[PositionLogprobs, ...], tuple[PositionLogprobs, ...]]
"""A request's id and the fields of a `Delta` that was not read yet."""

CommandName = Literal["flush_prefix_cache", "start_profile", "stop_profile"]


@dataclass(frozen=True, slots=True)
class Start:
    """To the engine, the first message: prepare to load the model, and log in this way."""

    config: EngineConfig
    log_level: str
    log_format: LogFormat


@dataclass(frozen=True, slots=True)
class LoadModel:
    """To the engine, the second message: the model's files are there."""


@dataclass(frozen=True, slots=True)
class Opened:
    """From the engine, the first message: the configuration of the model that it begins to load."""

    config: ModelConfig


@dataclass(frozen=True, slots=True)
class Started:
    """From the engine, the second message: it serves."""

    info: EngineInfo
    stats: EngineStats


@dataclass(frozen=True, slots=True)
class Submit:
    """To the engine: queue a request, which the server process has validated."""

    request: EngineRequest


@dataclass(frozen=True, slots=True)
class Cancel:
    """To the engine: end a request."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Command:
    """To the engine: an operation between two steps. Its `Reply` has the same serial number.

    Attributes:
        serial: unique among the commands.
        name: the method of `EngineClient`.
        path: the file of ``stop_profile``; None for the others.
    """

    serial: int
    name: CommandName
    path: Path | None


@dataclass(frozen=True, slots=True)
class FollowCache:
    """To the engine: send `CacheChanges` from now on."""


@dataclass(frozen=True, slots=True)
class Reply:
    """From the engine: the result of the command with this serial number, or its error."""

    serial: int
    result: object = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Updates:
    """From the engine: updates of requests, and the engine's state if it has changed.

    Attributes:
        deltas: the deltas as tuples, which pickle several times as fast as objects.
        ends: the ends of outputs and requests. They follow the deltas.
        stats: the engine's state; None if it is the same.
    """

    deltas: Sequence[DeltaFields]
    ends: Sequence[tuple[str, Finished | Failed]]
    stats: EngineStats | None

    @staticmethod
    def of(updates: Iterable[tuple[str, Update]], stats: EngineStats | None) -> Updates:
        """A message with (request id, update) pairs. Each request's updates must be in order."""
        deltas: list[DeltaFields] = []
        ends: list[tuple[str, Finished | Failed]] = []
        for request_id, update in updates:
            match update:
                case Delta():
                    fields = (update.index, update.token_ids, update.text, update.logprobs, update.prompt_logprobs)
                    deltas.append((request_id, *fields))
                case Failed():
                    ends.append((request_id, Failed(portable(update.error))))
                case Finished():
                    ends.append((request_id, update))
        return Updates(deltas, ends, stats)

    def __iter__(self) -> Iterator[tuple[str, Update]]:
        """(request id, update) pairs, each request's in order."""
        for request_id, index, tokens, text, logprobs, prompt_logprobs in self.deltas:
            yield request_id, Delta(index, tokens, text, logprobs, prompt_logprobs)
        yield from self.ends


@dataclass(frozen=True, slots=True)
class CacheChanges:
    """From the engine: what `JournalReader.take_events` has returned, which is never nothing."""

    everything: bool
    events: Sequence[Event]


@dataclass(frozen=True, slots=True)
class Stopped:
    """From the engine, the last message: it has ended. ``error`` is its fault, or None after `Close`."""

    error: Exception | None


@dataclass(frozen=True, slots=True)
class Close:
    """To the engine: stop after the step in progress."""


ToEngine = Start | LoadModel | Submit | Cancel | Command | FollowCache | Close
FromEngine = Opened | Started | Updates | CacheChanges | Reply | Stopped


def portable(error: Exception) -> Exception:
    """``error`` if it can be pickled; otherwise an error with the same message."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001  an error's class can fail in any way
        return EngineStoppedError(f"{type(error).__name__}: {error}")
    return error
