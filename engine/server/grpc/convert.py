"""Conversion of ``draftline.v1`` requests to the engine's types, and of the engine's updates to messages.

Values only change their form here. Their bounds are declared and checked in `params`, and against the model in
`request`. Unknown fields are ignored, as everywhere in protobuf. An unknown enum number is an error: ignoring it would
change the meaning of the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from google.protobuf.message import Message
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from draftline import __version__
from draftline.engine.chat.calls import Tool, ToolCall, ToolChoice, ToolMode
from draftline.engine.chat.messages import Chat
from draftline.engine.errors import FieldViolation, InvalidRequestError
from draftline.engine.outputs import ConstraintReport, Delta, Finished, PositionLogprobs
from draftline.engine.params import Constraint, SamplingParams, Speculation
from draftline.engine.protocol import EngineInfo, GenerateRequest, Prompt
from draftline.engine.server.grpc.limits import check_generate
from draftline.engine.server.limits import refuse
from draftline.engine.validation import violations
from draftline.models.tokenization.rendering import Rendering
from draftline.structured.members import RepeatedMemberError, check_members
from draftline.v1 import engine_pb2 as pb

POSITIONS_PER_MESSAGE = 2048
"""Positions with log-probabilities in one Delta. With 20 each they are about 0.5 MB; clients accept 4 MB by default."""

_WHITESPACE = {
    pb.WHITESPACE_COMPACT: "compact",
    pb.WHITESPACE_SPACED: "spaced",
    pb.WHITESPACE_FREE: "free",
}

_INTEGERS = {
    pb.INTEGERS_PLAIN: "plain",
    pb.INTEGERS_STANDARD: "standard",
}

_ORDERS = {
    pb.MEMBER_ORDER_SCHEMA: "schema",
    pb.MEMBER_ORDER_ANY: "any",
}

_MODES: dict[int, ToolMode] = {
    pb.ToolChoice.MODE_UNSPECIFIED: "auto",
    pb.ToolChoice.MODE_AUTO: "auto",
    pb.ToolChoice.MODE_NONE: "none",
    pb.ToolChoice.MODE_REQUIRED: "required",
}

_T = TypeVar("_T")
_Params = TypeVar("_Params", bound=BaseModel)


def generate_request(request: pb.GenerateRequest, info: EngineInfo, time_left: float | None) -> GenerateRequest:
    """Convert a client's request.

    Args:
        request: the client's message.
        info: of the engine that will serve the request.
        time_left: seconds until the deadline of the call; None without a deadline.

    Raises:
        InvalidRequestError: listing every invalid field by its path in the proto.
    """
    check_generate(request, info)
    wrong: list[FieldViolation] = []
    prompt = _collect(wrong, lambda: _prompt(request))
    sampling = _collect(wrong, lambda: _validated(SamplingParams, "sampling", _fields(request.sampling)))
    speculation = _collect(wrong, lambda: _validated(Speculation, "speculation", _fields(request.speculation)))
    constrained = request.HasField("constraint")
    constraint = _collect(wrong, lambda: constraint_params(request.constraint)) if constrained else None
    timeout = _collect(wrong, lambda: _timeout(request, time_left))
    if wrong or prompt is None or sampling is None or speculation is None:
        raise InvalidRequestError(*wrong)
    return GenerateRequest(prompt, sampling, constraint, speculation, request.priority, timeout)


def constraint_params(constraint: pb.Constraint) -> Constraint:
    """Convert a constraint.

    Raises:
        InvalidRequestError: listing every invalid field by its path in the proto.
    """
    kind = constraint.WhichOneof("kind")
    values = _fields(constraint)
    if kind == "choice":
        values["choice"] = tuple(constraint.choice.choices)
    elif kind == "json_object":
        values["json_object"] = True
    unknown: list[FieldViolation] = []
    for name, numbers in (("whitespace", _WHITESPACE), ("integers", _INTEGERS), ("member_order", _ORDERS)):
        if number := getattr(constraint, name):
            if number not in numbers:
                unknown.append(FieldViolation(f"constraint.{name}", f"unknown value {number}"))
            values[name] = numbers.get(number)
    refuse(*unknown)
    if constraint.HasField("reasoning"):
        values["reasoning"] = _fields(constraint.reasoning)
    return _validated(Constraint, "constraint", values)


def chat(message: pb.Chat) -> Chat:
    """Convert a chat.

    Raises:
        InvalidRequestError: listing every invalid field by its path in the proto.
    """
    violations = [
        FieldViolation(f"chat.messages[{index}].{name}", "is missing")
        for index, entry in enumerate(message.messages)
        for name, is_set in (("role", bool(entry.role)), ("content", _has_content(entry)))
        if not is_set
    ]
    mode = message.tool_choice.mode
    if mode not in _MODES:
        violations.append(FieldViolation("chat.tool_choice.mode", f"unknown value {mode}"))
    if message.continue_final_message and message.add_generation_prompt:
        problem = "cannot come with add_generation_prompt: one continues a message, the other begins one"
        violations.append(FieldViolation("chat.continue_final_message", problem))
    refuse(*violations)
    rendering = Rendering(
        _variables(message.chat_template_kwargs),
        add_generation_prompt=message.add_generation_prompt or not message.HasField("add_generation_prompt"),
        continue_final_message=message.continue_final_message,
    )
    return Chat(
        [_message(entry) for entry in message.messages],
        rendering,
        tools=[Tool(tool.name, tool.description, tool.parameters) for tool in message.tools],
        tool_choice=ToolChoice(_MODES[mode], tuple(message.tool_choice.names)),
        parallel_tool_calls=message.parallel_tool_calls if message.HasField("parallel_tool_calls") else None,
        max_reasoning_tokens=message.max_reasoning_tokens if message.HasField("max_reasoning_tokens") else None,
    )


def _has_content(entry: pb.ChatMessage) -> bool:
    """Whether a message says what its content is: calls may be all that the assistant answered."""
    return entry.HasField("content") or (entry.role == "assistant" and bool(entry.tool_calls))


def _message(entry: pb.ChatMessage) -> dict[str, object]:
    values: dict[str, object] = {"role": entry.role, "content": entry.content}
    if entry.tool_calls:
        values["tool_calls"] = [ToolCall(call.id, call.name, call.arguments) for call in entry.tool_calls]
    if entry.tool_call_id:
        values["tool_call_id"] = entry.tool_call_id
    if entry.reasoning:
        values["reasoning"] = entry.reasoning
    return values


def deltas(delta: Delta) -> Iterator[pb.Delta]:
    """Convert a delta to one message, or to several if log-probabilities would make it larger than clients accept."""
    message = pb.Delta(index=delta.index, token_ids=delta.token_ids, text=delta.text)
    if delta.reasoning:
        message.reasoning = delta.reasoning
    for call in delta.tool_calls:
        message.tool_calls.add(index=call.index, id=call.id, name=call.name, arguments=call.arguments)
    if not delta.logprobs and not delta.prompt_logprobs:  # the usual case
        yield message
        return
    first, *more = _pieces(delta)
    message.logprobs.extend(map(_logprobs, first[0]))
    message.prompt_logprobs.extend(map(_logprobs, first[1]))
    yield message
    for logprobs, prompt_logprobs in more:
        yield pb.Delta(
            index=delta.index, logprobs=map(_logprobs, logprobs), prompt_logprobs=map(_logprobs, prompt_logprobs)
        )


def finished(end: Finished) -> pb.Finished:
    """Convert the end of an output."""
    times = end.speculation.times
    return pb.Finished(
        index=end.index,
        finish_reason=pb.FinishReason.ValueType(end.finish_reason.value),
        matched_stop=end.matched_stop,
        usage=pb.Usage(
            prompt_tokens=end.usage.prompt_tokens,
            cached_tokens=end.usage.cached_tokens,
            completion_tokens=end.usage.completion_tokens,
        ),
        speculation=pb.SpeculationStats(
            drafted=end.speculation.drafted,
            accepted=end.speculation.accepted,
            steps=end.speculation.steps,
            accepted_by_position=end.speculation.accepted_by_position,
            drafter=end.speculation.drafter,
            times=pb.StepTimes(
                draft_s=times.draft_s, verify_s=times.verify_s, sample_s=times.sample_s, host_s=times.host_s
            ),
            synthetic=end.speculation.synthetic,
        ),
        timing=pb.Timing(
            queued_s=end.timing.queued_s,
            prefill_s=end.timing.prefill_s,
            first_token_s=end.timing.first_token_s,
            total_s=end.timing.total_s,
            constraint_compile_s=end.timing.constraint_compile_s,
        ),
        constraint_complete=end.constraint_complete,
        json_valid=end.json_valid,
        seed=end.seed,
        system_fingerprint=end.system_fingerprint,
        unenforced=end.unenforced,
        broken_off=None
        if end.broken_off is None
        else pb.BrokenOff(pointer=end.broken_off.pointer, byte_offset=end.broken_off.byte_offset),
        tags=[
            pb.TagSpan(
                name=tag.name,
                begin=tag.begin,
                start=tag.start,
                content_start=tag.content_start,
                content_end=tag.content_end,
                end=tag.end,
            )
            for tag in end.tags
        ],
        tool_calls=[pb.ToolCall(id=call.id, name=call.name, arguments=call.arguments) for call in end.tool_calls],
        reasoning_tokens=end.reasoning_tokens,
    )


def model_response(info: EngineInfo) -> pb.GetModelResponse:
    """The description of the served model and the server's limits."""
    return pb.GetModelResponse(
        model=info.model,
        family=info.config.family,
        quantization=info.quantization,
        dtype=info.dtype,
        device=info.device,
        vocab_size=info.config.vocab_size,
        max_model_len=info.max_model_len,
        max_num_seqs=info.max_num_seqs,
        cache_blocks=info.cache_blocks,
        block_size=info.block_size,
        eos_token_ids=info.eos_token_ids,
        drafters=info.drafters,
        constraint_kinds=info.constraint_kinds,
        has_chat_template=info.has_chat_template,
        version=__version__,
        synthetic_acceptance=info.synthetic_acceptance,
        system_fingerprint=info.system_fingerprint,
        tool_format=info.tool_format,
        reasoning=None if info.reasoning is None else pb.ReasoningMarks(begin=info.reasoning[0], end=info.reasoning[1]),
    )


def constraint_response(report: ConstraintReport) -> pb.CheckConstraintResponse:
    """Convert a report on a constraint."""
    return pb.CheckConstraintResponse(
        backend=report.backend,
        states=report.states,
        compile_s=report.compile_s,
        unenforced=report.unenforced,
        no_automaton=report.no_automaton,
        token_classes=report.token_classes,
        token_masks=report.token_masks,
        closed=report.closed,
        runs_on=report.runs_on,
    )


def _prompt(request: pb.GenerateRequest) -> Prompt:
    match request.WhichOneof("prompt"):
        case "text":
            return request.text
        case "token_ids":
            return list(request.token_ids.ids)
        case "chat":
            return chat(request.chat)
        case _:
            raise InvalidRequestError(FieldViolation("prompt", "is missing: set text, token_ids or chat"))


def _variables(text: str) -> dict[str, object]:
    """The variables of a chat template, of their JSON; none if it is empty."""
    try:
        value = from_json(text) if text else {}
    except ValueError as error:
        raise InvalidRequestError(FieldViolation("chat.chat_template_kwargs", f"is not JSON: {error}")) from None
    try:
        check_members(text or "{}")
    except RepeatedMemberError as error:
        raise InvalidRequestError(FieldViolation("chat.chat_template_kwargs", str(error))) from None
    if not isinstance(value, dict):
        raise InvalidRequestError(FieldViolation("chat.chat_template_kwargs", "must be a JSON object"))
    return value


def _timeout(request: pb.GenerateRequest, time_left: float | None) -> float | None:
    """Seconds until the request times out: its own timeout, or the call's deadline if that is earlier."""
    if not request.HasField("timeout"):
        return time_left
    seconds, nanos = request.timeout.seconds, request.timeout.nanos
    if abs(nanos) >= 10**9 or seconds * nanos < 0:
        raise InvalidRequestError(FieldViolation("timeout", f"has {seconds} s and {nanos} ns, which is no duration"))
    timeout = seconds + nanos / 1e9
    if timeout <= 0:
        raise InvalidRequestError(FieldViolation("timeout", f"must be more than 0 s, not {timeout:g} s"))
    return timeout if time_left is None else min(timeout, time_left)


def _fields(message: Message) -> dict[str, object]:
    """The fields that the client set, in types that pydantic accepts. The names are those of `params`."""
    return {
        field.name: dict(value) if isinstance(value, Mapping) else tuple(value) if field.is_repeated else value
        for field, value in message.ListFields()
    }


def _validated(params: type[_Params], path: str, values: Mapping[str, object]) -> _Params:
    try:
        return params.model_validate(values)
    except ValidationError as error:
        raise InvalidRequestError(*violations(error, path)) from None


def _collect(violations: list[FieldViolation], convert: Callable[[], _T]) -> _T | None:
    """``convert()``, or None with its violations added to ``violations``: one error then lists all of them."""
    try:
        return convert()
    except InvalidRequestError as error:
        violations.extend(error.violations)
        return None


_Piece = tuple[tuple[PositionLogprobs, ...], tuple[PositionLogprobs, ...]]


def _pieces(delta: Delta) -> list[_Piece]:
    """The (logprobs, prompt_logprobs) of each message: one message at least, which may have none."""
    size = POSITIONS_PER_MESSAGE
    output = [(delta.logprobs[i : i + size], ()) for i in range(0, len(delta.logprobs), size)]
    prompt = [((), delta.prompt_logprobs[i : i + size]) for i in range(0, len(delta.prompt_logprobs), size)]
    if len(delta.logprobs) + len(delta.prompt_logprobs) <= size:
        return [(delta.logprobs, delta.prompt_logprobs)]
    return [*prompt, *output]


def _logprobs(position: PositionLogprobs) -> pb.TokenLogprobs:
    chosen = position.chosen
    return pb.TokenLogprobs(
        token_id=chosen.token_id,
        logprob=chosen.logprob,
        rank=chosen.rank,
        top=[pb.TopLogprob(token_id=top.token_id, logprob=top.logprob) for top in position.top],
    )
