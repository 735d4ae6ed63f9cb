"""The engine's results: its updates for each step, and the whole outputs that Python callers get."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar, Generic

from pydantic import ValidationError

from draftline.engine.chat.calls import ToolCall, ToolCallDelta
from draftline.engine.errors import FieldViolation, IncompleteOutputError, InvalidOutputError
from draftline.engine.params import Constraint, T
from draftline.engine.stats import NO_TIME, StepTimes, Utilization
from draftline.engine.validation import violations
from draftline.structured.tags.form import REASONING
from draftline.structured.tags.span import TagSpan as TagSpan


class FinishReason(enum.Enum):
    """The reason why an output ended. The values are the proto's enum numbers."""

    EOS = 1
    STOP = 2
    LENGTH = 3
    CANCELLED = 4


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The log-probability of one token in the model's own distribution. Rank 1 is the most likely token."""

    token_id: int
    logprob: float
    rank: int


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """The log-probabilities at one position: of its token, and of the most likely tokens."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one output. ``cached_tokens`` counts the prompt's tokens that came from the prefix cache.

    All are 0 if the request was cancelled while its constraint compiled or its prompt was tokenized.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """Speculative decoding of one output.

    Attributes:
        drafted: tokens that were drafted.
        accepted: drafted tokens that were accepted.
        steps: steps that decided tokens of the output, with drafts or without.
        accepted_by_position: entry i counts the steps whose draft i was accepted.
        drafter: the drafter's name; empty if nothing was drafted.
        times: of the steps with drafts, which the output shared with the other outputs of its batch.
        synthetic: drafts were accepted at random, for a benchmark. Then the output has no meaning.
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
    """Times of one output in seconds.

    Attributes:
        queued_s: from submission, without ``constraint_compile_s``, to the first step.
        prefill_s: from the first step to the first token.
        first_token_s: from submission to the first token.
        total_s: from submission to the end.
        constraint_compile_s: the wait for the constraint to compile, after the submission; 0 without one.
    """

    queued_s: float
    prefill_s: float
    first_token_s: float
    total_s: float
    constraint_compile_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ConstraintReport:
    """The result of compiling a constraint.

    Attributes:
        backend: the backend that enforces it: "automaton" or "grammar".
        runs_on: where masks are computed: on the "device", by look-ups in an automaton's tables, or on the "host".
        states: states of the automaton; 0 for a grammar.
        token_classes: classes of equivalent tokens of the automaton.
        token_masks: its distinct sets of allowed tokens.
        compile_s: seconds that it took to compile, or to read from the cache.
        unenforced: JSON pointers of the parts of the constraint that are not enforced.
        no_automaton: why it has no automaton; empty if it has one.
        closed: JSON pointers of the schemas whose objects ``close_objects`` has closed.
    """

    backend: str
    runs_on: str
    states: int
    token_classes: int
    token_masks: int
    compile_s: float
    unenforced: tuple[str, ...]
    no_automaton: str
    closed: tuple[str, ...] = ()


@dataclass(slots=True)
class Delta:
    """New tokens of output ``index``. Parts of characters, and text that may become a stop string, are held back.

    Of a chat, ``reasoning`` and ``tool_calls`` are no part of the text. Text that may become a call is held back too.

    Read-only, but not frozen: a frozen dataclass takes several times as long to make.
    """

    ends_output: ClassVar[bool] = False
    ends_request: ClassVar[bool] = False

    index: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[PositionLogprobs, ...] = ()
    prompt_logprobs: tuple[PositionLogprobs, ...] = ()
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()

    @staticmethod
    def merge(deltas: Sequence[Delta]) -> Delta:
        """Merge consecutive deltas of one output."""
        if len(deltas) == 1:
            return deltas[0]
        flat = chain.from_iterable
        return Delta(
            deltas[0].index,
            tuple(flat([delta.token_ids for delta in deltas])),
            "".join([delta.text for delta in deltas]),
            tuple(flat([delta.logprobs for delta in deltas])),
            tuple(flat([delta.prompt_logprobs for delta in deltas])),
            "".join([delta.reasoning for delta in deltas]),
            tuple(flat([delta.tool_calls for delta in deltas])),
        )


@dataclass(frozen=True, slots=True)
class BrokenOff:
    """Where an incomplete JSON document broke off.

    Attributes:
        pointer: the JSON pointer of the innermost value that is not finished.
        byte_offset: where it begins in the UTF-8 of the text, or where its unfinished member name begins. The text
            before is whole.
    """

    pointer: str
    byte_offset: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of one output.

    Attributes:
        index: of the output.
        finish_reason: why it ended.
        matched_stop: the stop string, or the stop token's id in decimal; empty if neither ended the output.
        usage: token counts.
        speculation: of the output's speculative decoding.
        timing: times in seconds.
        constraint_complete: whether the text matches the constraint; None without a constraint.
        seed: reproduces the output, with ``n = 1``.
        stopped_by_token: whether ``matched_stop`` is a token id.
        json_valid: whether the text is a JSON document, behind its reasoning; None without a JSON constraint.
        system_fingerprint: of the engine; see `EngineInfo`.
        unenforced: JSON pointers of the parts of the constraint that are not enforced.
        broken_off: where the text broke off if ``json_valid`` is False; None otherwise.
        tags: the tags that the output completed, in the order of their ends; reasoning is one of them. Of a chat whose
            reasoning and calls are no part of the text, they are not listed.
        tool_calls: the calls that the output completed.
        reasoning_tokens: the tokens of a chat's reasoning, its marks included.
        utilization: the engine's steps while the output ran; None over gRPC.
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
    system_fingerprint: str = ""
    unenforced: tuple[str, ...] = ()
    broken_off: BrokenOff | None = None
    tags: tuple[TagSpan, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning_tokens: int = 0
    utilization: Utilization | None = None

    @property
    def stop_reason(self) -> str | int | None:
        """The stop string or the stop token's id that ended the output; None if neither did."""
        if self.finish_reason is not FinishReason.STOP:
            return None
        return int(self.matched_stop) if self.stopped_by_token else self.matched_stop

    @property
    def reasoning(self) -> TagSpan | None:
        """The output's reasoning; None without one, or if it has not ended."""
        return next((tag for tag in self.tags if tag.name == REASONING), None)


@dataclass(frozen=True, slots=True)
class Failed:
    """The end of a whole request by an error."""

    ends_output: ClassVar[bool] = True
    ends_request: ClassVar[bool] = True

    error: Exception


Update = Delta | Finished | Failed


class _Unread(enum.Enum):
    """In the place of a value that was not asked for: the same one in copies, and in other processes."""

    VALUE = enum.auto()


_UNREAD: Any = _Unread.VALUE


@dataclass(slots=True)
class CompletionOutput(Generic[T]):
    """One output, as far as it has come."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    finished: Finished | None = None
    constraint: Constraint[T] | None = field(default=None, repr=False, compare=False)
    reasoning_text: str = ""
    _value: T = field(default=_UNREAD, init=False, repr=False, compare=False)

    @property
    def parsed(self) -> T:
        """The value that the text stands for: of the type that `Schema` got. It is made on first use, and kept.

        JSON without a type gives what ``json.loads`` does. Other texts are their own value.

        Raises:
            IncompleteOutputError: the output has not ended, or it ended before its constraint was complete.
            InvalidOutputError: a validator of the type that is written in Python rejects the value.
        """
        if self._value is _UNREAD:
            self._value = self._parse()
        return self._value

    @property
    def reasoning(self) -> str | None:
        """The reasoning between its marks; None without one.

        Of a constraint with reasoning, it is known when the output has ended. Of a chat it grows with the output.
        """
        if self.reasoning_text:
            return self.reasoning_text
        span = None if self.finished is None else self.finished.reasoning
        return None if span is None else self.text[span.content_start : span.content_end]

    @property
    def answer(self) -> str:
        """The text behind the reasoning; the whole text without reasoning, or before the output has ended."""
        span = None if self.finished is None else self.finished.reasoning
        return self.text if span is None else self.text[span.end :]

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls that the output completed; none before it has ended."""
        return () if self.finished is None else self.finished.tool_calls

    def _parse(self) -> T:
        if self.finished is None:
            state = "has not ended" if self.finish_reason is None else f"was {self.finish_reason}"
            raise IncompleteOutputError(f"the output {state}", self.text)
        if self.finished.tool_calls:
            raise IncompleteOutputError("the output calls tools, and has no answer", self.text)
        if self.constraint is None:
            text: Any = self.text
            return text  # type: ignore[no-any-return]
        if not self.finished.constraint_complete:
            raise IncompleteOutputError(self._incomplete(self.finished), self.text)
        try:
            return self.constraint.parse(self.answer)
        except ValidationError as error:
            raise InvalidOutputError(self.text, *violations(error)) from error
        except ValueError as error:  # of another library
            raise InvalidOutputError(self.text, FieldViolation("", str(error))) from error
        except Exception as error:
            problem = f"a validator raised {type(error).__name__}: {error}"
            raise InvalidOutputError(self.text, FieldViolation("", problem)) from error

    def _incomplete(self, finished: Finished) -> str:
        tokens = finished.usage.completion_tokens
        match finished.finish_reason:
            case FinishReason.LENGTH:
                why = f"ended at its limit of {tokens} tokens"
            case FinishReason.STOP:
                why = f"ended at the stop {finished.matched_stop!r} after {tokens} tokens"
            case FinishReason.CANCELLED:
                why = f"was cancelled after {tokens} tokens"
            case FinishReason.EOS:
                why = f"ended by itself after {tokens} tokens"
        return f"the output {why}, before its constraint was complete"


@dataclass(slots=True)
class RequestOutput(Generic[T]):
    """A request with its outputs, as far as they have come."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput[T]]
    prompt_logprobs: list[PositionLogprobs] | None = None

    @property
    def finished(self) -> bool:
        """Whether every output has ended."""
        return all(output.finish_reason is not None for output in self.outputs)

    @property
    def system_fingerprint(self) -> str | None:
        """The fingerprint of the engine that made the outputs; None until one has ended."""
        return next((output.finished.system_fingerprint for output in self.outputs if output.finished), None)

    @property
    def parsed(self) -> T:
        """The value of the first output. See `CompletionOutput.parsed`."""
        return self.outputs[0].parsed
