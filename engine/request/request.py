"""From what a client wrote to a request that can run: tokenized, checked against the model, with seeds and limits."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from draftline.engine.errors import InvalidRequestError, Violation
from draftline.engine.params import Constraint, SamplingParams, Speculation
from draftline.engine.protocol import Chat, EngineInfo, GenerateRequest, Prompt, Sink
from draftline.engine.request import sequence as engine_sequence
from draftline.engine.request.constraints import CONSTRAINT_ERRORS, OutputConstraint, refusal, structured_constraint
from draftline.engine.request.prompt import tokenize
from draftline.models.tokenization.tokenizer import Tokenizer
from draftline.structured.compiled import CompiledConstraint
from draftline.structured.compiler import ConstraintCompiler

DEFAULT_MAX_TOKENS = 256
"""Output tokens where a request does not say, as far as the context leaves room."""


@dataclass(frozen=True, slots=True)
class Request:
    """A checked request, ready to be queued.

    Attributes:
        request_id: unique among the running requests.
        prompt: the prompt's text as given, or None if it was not a text.
        prompt_token_ids: the prompt's tokens, at least one.
        sequences: its ``n`` outputs.
        sink: where its updates go.
        submitted_at: when it was submitted, in seconds on the monotonic clock.
        deadline: when it must have ended, on the same clock; infinite where it need not.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    sequences: tuple[engine_sequence.Sequence, ...]
    sink: Sink
    submitted_at: float
    deadline: float = math.inf


class RequestBuilder:
    """Checks requests against one engine's model and limits. Thread-safe."""

    def __init__(
        self, info: EngineInfo, tokenizer: Tokenizer, ageing_s: float, compiler: ConstraintCompiler | None = None
    ) -> None:
        """A builder for one engine.

        Args:
            info: the engine's.
            tokenizer: the model's.
            ageing_s: the head start in the queue, in seconds, for each unit of priority.
            compiler: compiles constraints; without one there are none.
        """
        self._info = info
        self._tokenizer = tokenizer
        self._ageing_s = ageing_s
        self._compiler = compiler

    def build(self, request_id: str, request: GenerateRequest, sink: Sink, now: float) -> Request:
        """Check and complete a request. Waits for its constraint, if that has not been compiled.

        Raises:
            InvalidRequestError: listing every field that is wrong.
        """
        violations = [*self._option_violations(request), *self._sampling_violations(request.sampling)]
        prompt_field, token_ids = self._encode(request.prompt, violations)
        if token_ids is not None:
            violations.extend(self._length_violations(prompt_field, len(token_ids)))
        compiled = self._constraint(request.constraint, violations)
        if violations or token_ids is None:
            raise InvalidRequestError(*violations)
        sequences = self._sequences(request_id, request, token_ids, compiled, now)
        text = request.prompt if isinstance(request.prompt, str) else None
        deadline = math.inf if request.timeout_s is None else now + request.timeout_s
        return Request(request_id, text, tuple(token_ids), sequences, sink, now, deadline)

    def _sequences(
        self,
        request_id: str,
        request: GenerateRequest,
        token_ids: list[int],
        compiled: CompiledConstraint | None,
        now: float,
    ) -> tuple[engine_sequence.Sequence, ...]:
        sampling = request.sampling
        room = self._info.max_model_len - len(token_ids)
        wanted = DEFAULT_MAX_TOKENS if sampling.max_tokens is None else sampling.max_tokens
        max_len = len(token_ids) + min(wanted, room)
        closes = request.constraint is not None and request.constraint.close_within_budget
        if closes and compiled is not None and (compiled.shortest or 0) > max_len - len(token_ids):
            raise InvalidRequestError(
                Violation(
                    "constraint.close_within_budget",
                    f"the shortest text that the constraint allows takes {compiled.shortest} tokens, but only "
                    f"{max_len - len(token_ids)} may be generated",
                )
            )
        first_seed = secrets.randbits(64) if sampling.seed is None else sampling.seed
        followers = sampling.model_copy(update={"prompt_logprobs": None})
        sequences: list[engine_sequence.Sequence] = []
        for index in range(sampling.n):
            sequences.append(
                engine_sequence.Sequence(
                    request_id=request_id,
                    index=index,
                    tokens=list(token_ids),
                    prompt_len=len(token_ids),
                    sampling=followers if index else sampling,
                    seed=(first_seed + index) % 2**64,
                    max_len=max_len,
                    order=now - request.priority * self._ageing_s,
                    leader=sequences[0] if index else None,
                    draft_tokens=_draft_tokens(request.speculation) if self._info.drafters else 0,
                    constraint=None
                    if compiled is None or request.constraint is None
                    else OutputConstraint.of(compiled, request.constraint, len(token_ids), max_len),
                )
            )
        return tuple(sequences)

    def _constraint(self, asked: Constraint | None, violations: list[Violation]) -> CompiledConstraint | None:
        """The compiled constraint, or None, with violations if one was asked for."""
        if asked is None or self._compiler is None:
            return None
        constraint = structured_constraint(asked)
        try:
            return self._compiler.compile(constraint)
        except CONSTRAINT_ERRORS as error:
            violations.extend(refusal(constraint, error).violations)
            return None

    def _encode(self, prompt: Prompt, violations: list[Violation]) -> tuple[str, list[int] | None]:
        """The prompt's field name and its token ids; None, with violations, if it has none."""
        if isinstance(prompt, str | Chat):
            try:
                token_ids = tokenize(prompt, self._tokenizer, self._info) if prompt else []
            except InvalidRequestError as error:
                violations.extend(error.violations)
                return "", None
            return self._encoded("chat" if isinstance(prompt, Chat) else "text", token_ids, violations)
        ids = list(prompt)
        out_of_range = list(self._out_of_range("token_ids.ids", ids))
        violations.extend(out_of_range)
        return self._encoded("token_ids", [] if out_of_range else ids, [] if out_of_range else violations)

    def _encoded(
        self, field: str, token_ids: Sequence[int], violations: list[Violation]
    ) -> tuple[str, list[int] | None]:
        if not token_ids:
            violations.append(Violation(field, "is empty; a prompt needs at least one token"))
            return field, None
        return field, list(token_ids)

    def _length_violations(self, field: str, length: int) -> Iterator[Violation]:
        limit = self._info.max_model_len - 1
        if length > limit:
            yield Violation(
                field,
                f"has {length} tokens, but at most {limit} fit: this server's max_model_len is "
                f"{self._info.max_model_len} with at least one output token",
            )

    def _sampling_violations(self, sampling: SamplingParams) -> Iterator[Violation]:
        yield from self._out_of_range("sampling.stop_token_ids", sampling.stop_token_ids)
        yield from self._out_of_range("sampling.logit_bias", sampling.logit_bias)

    def _option_violations(self, request: GenerateRequest) -> Iterator[Violation]:
        if request.constraint is not None and self._compiler is None:
            yield Violation("constraint", "this server enforces no constraints")
        if request.speculation.enabled and not self._info.drafters:
            yield Violation("speculation.enabled", "this server has no drafter")
        if not -(2**31) <= request.priority < 2**31:
            yield Violation("priority", f"{request.priority} is not a 32-bit integer")

    def _out_of_range(self, field: str, ids: Sequence[int] | dict[int, float]) -> Iterator[Violation]:
        vocab = self._info.config.vocab_size
        for place, token in enumerate(ids):
            if not 0 <= token < vocab:
                yield Violation(f"{field}[{place}]", f"{token} is not a token id of this model (0 to {vocab - 1})")
                return  # one is enough: a prompt for another model would have thousands


def _draft_tokens(speculation: Speculation) -> int | None:
    """How many drafts a step the request asks for: none, so many, or None for the server's choice."""
    return 0 if speculation.enabled is False else speculation.draft_tokens
