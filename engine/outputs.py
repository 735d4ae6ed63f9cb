"""What comes back: the engine's per-step updates, and the whole outputs that Python callers get."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import ClassVar

from draftline.engine.stats import NO_TIME, StepTimes


class FinishReason(enum.Enum):
    """Why an output ended; the values are the proto's enum numbers."""

    EOS = 1
    STOP = 2
    LENGTH = 3
    CANCELLED = 4


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token's log-probability under the model's own distribution; rank 1 is the most likely."""

    token_id: int
    logprob: float
    rank: int


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """The log-probability of the token at one position, and of the most likely tokens there."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one output. ``cached_tokens`` of the prompt came from the prefix cache."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """What drafting did for one output: ``accepted_by_position[i]`` counts steps whose draft i was accepted.

    ``times`` are those of its steps with drafts, which it shared with the other outputs of its batch. ``synthetic`` says
    that drafts were accepted by chance: then the output means nothing.
    """

    drafted: int = 0
    accepted: int = 0
    steps: int = 0
    accepted_by_position: tuple[int, ...] = ()
    drafter: str = ""
    times: StepTimes = NO_TIME
    synthetic: bool = False


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds from submission: until first scheduled, in prefill, until the first token, until the end."""

    queued_s: float
    prefill_s: float
    first_token_s: float
    total_s: float


@dataclass(slots=True)
class Delta:
    """New tokens of output ``index``. Text is whole characters only, with possible stop strings held back.

    Read-only, but not frozen: a frozen one takes several times as long to make.
    """

    ends_output: ClassVar[bool] = False
    ends_request: ClassVar[bool] = False

    index: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[PositionLogprobs, ...] = ()
    prompt_logprobs: tuple[PositionLogprobs, ...] = ()

    @staticmethod
    def merge(deltas: Sequence[Delta]) -> Delta:
        """Deltas of one output that follow each other, as one."""
        if len(deltas) == 1:
            return deltas[0]
        flat = chain.from_iterable
        return Delta(
            deltas[0].index,
            tuple(flat([delta.token_ids for delta in deltas])),
            "".join([delta.text for delta in deltas]),
            tuple(flat([delta.logprobs for delta in deltas])),
            tuple(flat([delta.prompt_logprobs for delta in deltas])),
        )


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of output ``index``.

    ``matched_stop`` is the stop string, or the stop token's id in decimal (then ``stopped_by_token``), or empty. Where a
    JSON constraint was asked for, ``json_valid`` says whether the text is a JSON document.
    """

    ends_output: ClassVar[bool] = True
    ends_request: ClassVar[bool] = False

    index: int
    finish_reason: FinishReason
    matched_stop: str
    usage: Usage
    speculation: SpeculationStats
    timing: Timing
    constraint_complete: bool | None
    seed: int
    stopped_by_token: bool = False
    json_valid: bool | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """A fault ended the whole request."""

    ends_output: ClassVar[bool] = True
    ends_request: ClassVar[bool] = True

    error: Exception


Update = Delta | Finished | Failed


@dataclass(slots=True)
class CompletionOutput:
    """One output as it stands."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    finished: Finished | None = None


@dataclass(slots=True)
class RequestOutput:
    """A request with its outputs as they stand."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[PositionLogprobs] | None = None

    @property
    def finished(self) -> bool:
        """Whether every output has ended."""
        return all(output.finish_reason is not None for output in self.outputs)
