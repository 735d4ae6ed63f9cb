"""Requests that are ready to run: tokenized, validated against the model, with seeds and limits."""

from __future__ import annotations

import math
import random
import secrets
import time
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from draftline.engine.chat.messages import Chat
from draftline.engine.chat.plan import ChatPlan
from draftline.engine.errors import CONTEXT_LENGTH_EXCEEDED, FieldViolation, InvalidRequestError
from draftline.engine.params import DEFAULT_MAX_TOKENS, Constraint, SamplingParams, Speculation
from draftline.engine.protocol import CompiledPlan, EngineInfo, GenerateRequest, Sink
from draftline.engine.request.constraints import OutputConstraint, check_enforced, compile_blocking
from draftline.engine.request.engine_request import EngineRequest
from draftline.engine.request.sequence import Sequence
from draftline.engine.request.token_ids import least_and_most
from draftline.engine.request.tokenization import last_tokens, prompt_end, tokenize
from draftline.engine.tools.output_reader import OutputReader, RequestReader
from draftline.engine.tools.plan import plan_chat
from draftline.kernels.limits import MAX_BAD_WORD_TOKENS
from draftline.models.tokenization.tokenizer import Tokenizer
from draftline.structured.compiled import CompiledConstraint
from draftline.structured.compiler import ConstraintCompiler


@dataclass(frozen=True, slots=True)
class Request:
    """A validated request, ready to be queued.

    Attributes:
        request_id: unique among the running requests.
        prompt_token_ids: the prompt's tokens, at least one.
        sequences: its ``n`` outputs.
        sink: receives its updates.
        submitted_at: the time of submission, in seconds on the engine's clock.
        deadline: the time when it must have ended, on the same clock; infinite without a timeout.
        caller: whose request it is.
        weight: the caller's share, relative to other callers.
        head_start_s: the head start in the queue that its priority buys, in seconds.
        constraint_compile_s: seconds that it has waited for its constraint to compile, after its submission.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sequences: tuple[Sequence, ...]
    sink: Sink
    submitted_at: float
    deadline: float
    caller: str
    weight: float
    head_start_s: float
    constraint_compile_s: float

    @property
    def max_tokens(self) -> int:
        """The most tokens that it computes: its prompt once, and its outputs."""
        prompt = len(self.prompt_token_ids)
        return prompt + sum(sequence.max_len - prompt for sequence in self.sequences)

    @staticmethod
    def of(request: EngineRequest, compiled: CompiledConstraint | None, sink: Sink, now: float) -> Request:
        """Make a validated request ready to run in this process.

        Args:
            request: the validated request.
            compiled: its compiled constraint; None without one.
            sink: receives the request's updates.
            now: the time of submission, in seconds on the engine's clock.
        """
        return Request(
            request_id=request.request_id,
            prompt_token_ids=request.prompt_token_ids,
            sequences=_sequences(request, compiled),
            sink=sink,
            submitted_at=now,
            deadline=math.inf if request.timeout_s is None else now + request.timeout_s,
            caller=request.caller,
            weight=request.weight,
            head_start_s=request.head_start_s,
            constraint_compile_s=request.constraint_compile_s,
        )


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that its engine can run, and what its receiver reads the updates with.

    Attributes:
        request: the validated request.
        compiled: its compiled constraint; None without one.
        reader: reads its updates.
    """

    request: EngineRequest
    compiled: CompiledConstraint | None
    reader: RequestReader

    def begin(self, sink: Sink, now: float) -> Request:
        """The request, ready to run in this process. Arguments are those of `Request.of`."""
        return Request.of(self.request, self.compiled, sink, now)


class RequestBuilder:
    """Validates requests against one engine's model and limits. Thread-safe."""

    def __init__(
        self,
        info: EngineInfo,
        tokenizer: Tokenizer,
        ageing_s: float,
        compiler: ConstraintCompiler,
        seed: int | None = None,
    ) -> None:
        """Create a builder for one engine.

        Args:
            info: the engine's description.
            tokenizer: the model's tokenizer.
            ageing_s: the head start in the queue, in seconds, for each unit of priority.
            compiler: compiles constraints.
            seed: of the seeds of requests without one, in the order in which they are built; None for random ones.
        """
        self._info = info
        self._tokenizer = tokenizer
        self._ageing_s = ageing_s
        self._compiler = compiler
        self._spellings = lru_cache(maxsize=4096)(partial(_spellings, tokenizer))  # clients send the same words again
        self._new_seed = secrets.randbits if seed is None else random.Random(seed).getrandbits

    def build(self, request_id: str, request: GenerateRequest, sink: Sink, now: float) -> Request:
        """`prepare` and begin a request whose updates have no reader. ``now`` is the time of its submission."""
        return self.prepare(request_id, request).begin(sink, now - request.constraint_compile_s)

    def attach(self, request: EngineRequest, sink: Sink, now: float) -> Request:
        """Make a request that another process has prepared ready to run in this one. Blocks like `prepare`.

        Compiled constraints cannot move between processes, so this one compiles the constraint again.

        Raises:
            InvalidRequestError: the constraint does not compile here.
        """
        waited = request.constraint_compile_s
        if request.constraint is None:
            return Request.of(request, None, sink, now)
        compiled, seconds = self._compile(request.constraint)
        return Request.of(replace(request, constraint_compile_s=waited + seconds), compiled, sink, now - waited)

    def prepare(self, request_id: str, request: GenerateRequest) -> Prepared:
        """Validate a client's request. Blocks while its constraint compiles, unless the request was planned before.

        Args:
            request_id: the request's id.
            request: the request as the client sent it.

        Raises:
            InvalidRequestError: the request is invalid. It lists every field that is wrong.
        """
        violations = [*self._option_violations(request), *self._sampling_violations(request.sampling)]
        prompt_field, token_ids = self._encode(request, violations)
        if token_ids is not None:
            token_ids = last_tokens(token_ids, request.sampling.truncate_prompt_tokens, self._info)
            violations.extend(context_violations(prompt_field, len(token_ids), self._info))
        bad_words = self._bad_words(request.sampling, violations)
        planned = request.planned
        try:
            planned = planned or self._plan(request, token_ids or ())
        except InvalidRequestError as error:
            violations.extend(error.violations)
        if violations or token_ids is None or planned is None:
            raise InvalidRequestError(*violations).within(request.path)
        plan, compiled = planned.plan, planned.compiled

        # An output ends at its own limit or at the model's.
        sampling = request.sampling
        room = self._info.max_model_len - len(token_ids)
        max_tokens = min(DEFAULT_MAX_TOKENS if sampling.max_tokens is None else sampling.max_tokens, room)
        violations.extend(_limit_violations(sampling, plan, compiled, max_tokens, room))
        if violations:
            raise InvalidRequestError(*violations).within(request.path)
        engine_request = EngineRequest(
            request_id=request_id,
            prompt_token_ids=tuple(token_ids),
            sampling=sampling,
            seed=self._new_seed(64) if sampling.seed is None else sampling.seed,
            max_len=len(token_ids) + max_tokens,
            draft_tokens=_draft_tokens(request.speculation) if self._info.drafters else 0,
            constraint=plan.constraint,
            head_start_s=request.priority * self._ageing_s,
            timeout_s=request.timeout_s,
            caller=request.caller,
            weight=request.weight,
            constraint_compile_s=planned.compile_s,
            bad_words=bad_words,
        )
        return Prepared(engine_request, compiled, self._reader(plan, compiled, sampling.n))

    def _reader(self, plan: ChatPlan, compiled: CompiledConstraint | None, outputs: int) -> RequestReader:
        tags = None if compiled is None else compiled.tags
        marking = {} if compiled is None else compiled.marking
        is_json = plan.constraint is not None and plan.constraint.is_json

        def token_bytes(token: int) -> bytes:
            return marking.get(token) or self._tokenizer.token_bytes(token)

        return RequestReader(
            [OutputReader(plan.reading, tags, is_json=is_json, token_bytes=token_bytes) for _ in range(outputs)]
        )

    def _plan(self, request: GenerateRequest, token_ids: Seq[int]) -> CompiledPlan:
        """Plan a request with these tokens, and compile its constraint. Its errors have the request's paths."""
        plan = plan_chat(request, self._info, lambda: prompt_end(token_ids, self._tokenizer))
        if plan.constraint is None:
            return CompiledPlan(plan)
        try:
            check_enforced(plan.constraint, self._info)
            return CompiledPlan(plan, *self._compile(plan.constraint))
        except InvalidRequestError as error:
            raise plan.error(error) from error

    def _compile(self, constraint: Constraint) -> tuple[CompiledConstraint, float]:
        """The compiled constraint, and the seconds that it took."""
        started = time.monotonic()
        return compile_blocking(self._compiler, constraint), time.monotonic() - started

    def _encode(self, request: GenerateRequest, violations: list[FieldViolation]) -> tuple[str, Seq[int] | None]:
        """Return the prompt's field name and its token ids. If it has none, add violations and return None for them."""
        prompt, token_ids = request.prompt, request.prompt_token_ids
        if isinstance(prompt, str | Chat):
            field = "chat" if isinstance(prompt, Chat) else "text"
            if token_ids is None:
                try:
                    token_ids = self._tokenize(prompt, request.sampling) if prompt else ()
                except InvalidRequestError as error:
                    violations.extend(error.violations)
                    return field, None
        else:
            field, token_ids = "token_ids", list(prompt)
            if wrong := [*out_of_range("token_ids.ids", token_ids, self._info)]:
                violations.extend(wrong)
                return field, None
        if not token_ids:
            violations.append(FieldViolation(field, "is empty; a prompt needs at least one token"))
            return field, None
        return field, token_ids

    def _tokenize(self, prompt: str | Chat, sampling: SamplingParams) -> list[int]:
        # A chat template may leave most of a chat out, and a prompt that is cut may have any length.
        if isinstance(prompt, str) and sampling.truncate_prompt_tokens is None:
            wrong = [*text_violations(utf8_size(prompt), self._info, "text")]
            if wrong:
                raise InvalidRequestError(*wrong)
        return tokenize(prompt, self._tokenizer, self._info)

    def _sampling_violations(self, sampling: SamplingParams) -> Iterator[FieldViolation]:
        yield from out_of_range("sampling.stop_token_ids", sampling.stop_token_ids, self._info)
        yield from out_of_range("sampling.logit_bias", sampling.logit_bias, self._info)
        yield from out_of_range("sampling.allowed_token_ids", sampling.allowed_token_ids or (), self._info)

    def _bad_words(self, sampling: SamplingParams, violations: list[FieldViolation]) -> tuple[tuple[int, ...], ...]:
        """The token ids of each spelling of the bad words; adds a violation if they are too many."""
        spellings = dict.fromkeys(ids for word in sampling.bad_words for ids in self._spellings(word) if ids)
        tokens = sum(map(len, spellings))
        if tokens > MAX_BAD_WORD_TOKENS:
            problem = f"have {tokens} tokens, with and without a space before them; at most {MAX_BAD_WORD_TOKENS} fit"
            violations.append(FieldViolation("sampling.bad_words", problem))
        return tuple(spellings)

    def _option_violations(self, request: GenerateRequest) -> Iterator[FieldViolation]:
        if request.speculation.enabled and not self._info.drafters:
            yield FieldViolation("speculation.enabled", "this engine has no drafter")
        if not -(2**31) <= request.priority < 2**31:
            yield FieldViolation("priority", f"{request.priority} is not a 32-bit integer")
        if request.priority and self._info.scheduling in ("fcfs", "shortest"):
            yield FieldViolation("priority", f"means nothing where scheduling is {self._info.scheduling}")


def out_of_range(field: str, ids: Seq[int] | dict[int, float], info: EngineInfo) -> Iterator[FieldViolation]:
    """A violation if a number is no token id of the model. The entries of a mapping are named by its keys."""
    vocab = info.config.vocab_size
    least, most = least_and_most(ids) if ids else (0, 0)
    if least >= 0 and most < vocab:
        return
    for index, token in zip(ids if isinstance(ids, dict) else range(len(ids)), ids, strict=True):
        if not 0 <= token < vocab:
            yield FieldViolation(f"{field}[{index}]", f"{token} is not a token id of this model (0 to {vocab - 1})")
            return  # one is enough: a prompt for another model could have thousands


def utf8_size(text: str) -> int:
    """The bytes of a text in UTF-8, in which surrogate code points count as three bytes."""
    return len(text.encode(errors="surrogatepass"))


def text_violations(size: int, info: EngineInfo, field: str) -> Iterator[FieldViolation]:
    """A violation if a prompt of ``size`` bytes of UTF-8 cannot fit the context, however long its tokens are.

    Tokenizing it could take seconds.
    """
    limit = info.max_model_len * info.max_token_bytes
    if size > limit:
        yield FieldViolation(
            field,
            f"the prompt is too long: {size} bytes of UTF-8, but at most {limit} fit: this model's maximum context "
            f"length is {info.max_model_len} tokens (max_model_len), and its longest token stands for "
            f"{info.max_token_bytes} bytes",
            CONTEXT_LENGTH_EXCEEDED,
        )


def context_violations(field: str, length: int, info: EngineInfo) -> Iterator[FieldViolation]:
    """A violation if a prompt of ``length`` tokens leaves no room in the model's context."""
    limit = info.max_model_len - 1
    if length > limit:
        yield FieldViolation(
            field,
            # Clients such as LiteLLM know the error by "this model's maximum context length is".
            f"the prompt is too long: {length} tokens, but at most {limit} fit: this model's maximum context length is "
            f"{info.max_model_len} tokens (max_model_len), with at least one output token",
            CONTEXT_LENGTH_EXCEEDED,
        )


def _limit_violations(
    sampling: SamplingParams, plan: ChatPlan, compiled: CompiledConstraint | None, max_tokens: int, room: int
) -> Iterator[FieldViolation]:
    """What needs more tokens than there may be.

    Args:
        sampling: the sampling parameters.
        plan: the constraint, and who asked for it.
        compiled: the compiled constraint; None without one.
        max_tokens: the most tokens that may be generated.
        room: the most tokens that the context leaves.
    """
    if sampling.min_tokens > max_tokens:
        problem = f"min_tokens ({sampling.min_tokens}) exceeds the {max_tokens} tokens that can be generated"
        why = f"the prompt leaves room for {room}" if room == max_tokens else "the default of max_tokens"
        yield FieldViolation("sampling.min_tokens", f"{problem}: {why}")
    constraint = plan.constraint
    if constraint is None or compiled is None:
        return
    # A text that must be complete within the limit must fit at all.
    if constraint.close_within_budget and (compiled.shortest or 0) > max_tokens:
        problem = (
            f"the shortest text that the constraint allows takes {compiled.shortest} tokens, but only {max_tokens} "
            "may be generated"
        )
        yield FieldViolation("constraint.close_within_budget", problem)
    limit = None if constraint.reasoning is None else constraint.reasoning.max_tokens
    marks = compiled.shortest_reasoning
    if limit is not None and marks > limit:
        field = "constraint.reasoning.max_tokens" if plan.reading is None else "chat.max_reasoning_tokens"
        yield FieldViolation(field, f"is {limit}, but the marks of the reasoning alone take {marks} tokens")


def _sequences(request: EngineRequest, compiled: CompiledConstraint | None) -> tuple[Sequence, ...]:
    """The outputs of a request."""
    prompt_len = len(request.prompt_token_ids)
    # Every output has a seed of its own. Only the first one computes the whole prompt, so only it can return the
    # prompt's log-probabilities: they are the same for all.
    followers = request.sampling
    if followers.prompt_logprobs is not None:
        followers = followers.model_copy(update={"prompt_logprobs": None})
    sequences: list[Sequence] = []
    for index in range(request.sampling.n):
        sequences.append(
            Sequence(
                request_id=request.request_id,
                index=index,
                tokens=list(request.prompt_token_ids),
                prompt_len=prompt_len,
                sampling=followers if index else request.sampling,
                seed=(request.seed + index) % 2**64,
                max_len=request.max_len,
                leader=sequences[0] if index else None,
                draft_tokens=request.draft_tokens,
                constraint=None
                if compiled is None or request.constraint is None
                else OutputConstraint.of(compiled, request.constraint, prompt_len, request.max_len),
                bad_words=request.bad_words,
            )
        )
    return tuple(sequences)


def _spellings(tokenizer: Tokenizer, word: str) -> tuple[tuple[int, ...], ...]:
    """The token ids of a word within a text, without and with a space before it."""
    bare = word.lstrip()
    texts = (bare, f" {bare}") if bare else (word,)
    return tuple(tuple(tokenizer.encode_text(text)) for text in texts)


def _draft_tokens(speculation: Speculation) -> int | None:
    """The drafts per step that the request asks for: 0 with speculation off, None for the server's choice."""
    return 0 if speculation.enabled is False else speculation.draft_tokens
