"""Between the engine's types and protobuf, for clients: the inverse of `draftline.engine.server.grpc.convert`."""

from __future__ import annotations

import json
from dataclasses import replace

from draftline.engine.chat.calls import ToolCall, ToolCallDelta, ToolChoice
from draftline.engine.chat.messages import NO_DETAILS, Chat
from draftline.engine.errors import FieldViolation, InvalidRequestError
from draftline.engine.outputs import (
    BrokenOff,
    ConstraintReport,
    Delta,
    Finished,
    FinishReason,
    PositionLogprobs,
    SpeculationStats,
    TagSpan,
    Timing,
    TokenLogprob,
    Update,
    Usage,
)
from draftline.engine.params import Constraint, SamplingParams, Speculation
from draftline.engine.protocol import GenerateRequest
from draftline.engine.stats import StepTimes
from draftline.v1 import engine_pb2 as pb

_WHITESPACE = {
    "compact": pb.WHITESPACE_COMPACT,
    "spaced": pb.WHITESPACE_SPACED,
    "free": pb.WHITESPACE_FREE,
}

_INTEGERS = {
    "plain": pb.INTEGERS_PLAIN,
    "standard": pb.INTEGERS_STANDARD,
}

_ORDERS = {
    "schema": pb.MEMBER_ORDER_SCHEMA,
    "any": pb.MEMBER_ORDER_ANY,
}


def request_message(request: GenerateRequest) -> pb.GenerateRequest:
    """Convert a request to a message. Fields that have the server's default stay unset."""
    message = pb.GenerateRequest(
        sampling=_sampling(request.sampling), speculation=_speculation(request.speculation), priority=request.priority
    )
    if request.constraint is not None:
        message.constraint.CopyFrom(constraint_message(request.constraint))
    if request.timeout_s is not None:
        message.timeout.FromNanoseconds(round(request.timeout_s * 1e9))
    prompt = request.prompt
    if isinstance(prompt, str):
        message.text = prompt
    elif isinstance(prompt, Chat):
        message.chat.CopyFrom(chat_message(prompt))
    else:
        message.token_ids.ids.extend(prompt)
    return message


def chat_message(chat: Chat) -> pb.Chat:
    """Convert a chat to a message.

    Raises:
        InvalidRequestError: a variable of its template has no JSON.
    """
    if chat.rendering.tools or chat.rendering.members:
        raise InvalidRequestError(FieldViolation("chat.rendering", "cannot have tools or members; the chat has them"))
    message = pb.Chat(
        tools=[
            pb.Tool(name=tool.name, description=tool.description, parameters=tool.parameters) for tool in chat.tools
        ],
        parallel_tool_calls=False if chat.tool_choice.single else chat.parallel_tool_calls,
        max_reasoning_tokens=chat.max_reasoning_tokens,
        add_generation_prompt=None if chat.rendering.add_generation_prompt else False,
        continue_final_message=chat.rendering.continue_final_message,
    )
    for index, (role, content) in enumerate(chat.messages):
        details = chat.details.get(index, NO_DETAILS)
        message.messages.add(
            role=role,
            content=content,
            tool_calls=map(_call_message, details.tool_calls),
            tool_call_id=details.tool_call_id,
            reasoning=details.reasoning,
        )
    if chat.tool_choice != ToolChoice():
        message.tool_choice.mode = _MODES[chat.tool_choice.mode]
        message.tool_choice.names.extend(chat.tool_choice.names)
    if chat.rendering.variables:
        try:
            message.chat_template_kwargs = json.dumps(dict(chat.rendering.variables))
        except (TypeError, ValueError) as error:
            raise InvalidRequestError(FieldViolation("chat.chat_template_kwargs", str(error))) from error
    return message


def _call_message(call: ToolCall) -> pb.ToolCall:
    return pb.ToolCall(id=call.id, name=call.name, arguments=call.arguments)


_MODES = {
    "auto": pb.ToolChoice.MODE_AUTO,
    "none": pb.ToolChoice.MODE_NONE,
    "required": pb.ToolChoice.MODE_REQUIRED,
}


def update(response: pb.GenerateResponse) -> Update:
    """Convert a response to an update."""
    return delta(response.delta) if response.HasField("delta") else finished(response.finished)


def with_stop(update: Update, sampling: SamplingParams) -> Update:
    """Tell a stop token from a stop text by the request: the message has no field for it."""
    if not isinstance(update, Finished):
        return update
    matched = update.matched_stop
    by_token = matched not in sampling.stop and matched.isdecimal() and int(matched) in sampling.stop_token_ids
    return replace(update, stopped_by_token=by_token)


def delta(message: pb.Delta) -> Delta:
    """Convert a delta from the protocol."""
    return Delta(
        index=message.index,
        token_ids=tuple(message.token_ids),
        text=message.text,
        logprobs=tuple(map(_logprobs, message.logprobs)),
        prompt_logprobs=tuple(map(_logprobs, message.prompt_logprobs)),
        reasoning=message.reasoning,
        tool_calls=tuple(ToolCallDelta(call.index, call.id, call.name, call.arguments) for call in message.tool_calls),
    )


def _sampling(params: SamplingParams) -> pb.SamplingParams:
    given = params.model_dump(exclude_unset=True, exclude_none=True)
    if "seed" in given:
        given["seed"] %= 2**64  # as the engine takes it: the field has no negative numbers
    return pb.SamplingParams(**given)


def _speculation(params: Speculation) -> pb.Speculation:
    return pb.Speculation(**params.model_dump(exclude_none=True))


def constraint_message(params: Constraint) -> pb.Constraint:
    """Convert a constraint to the protocol."""
    unlike = {"choice", "json_object", "whitespace", "integers", "member_order", "reasoning"}
    message = pb.Constraint(**params.model_dump(exclude=unlike, exclude_none=True))
    message.whitespace = _WHITESPACE[params.whitespace]
    message.integers = _INTEGERS[params.integers]
    message.member_order = _ORDERS[params.member_order]
    if params.reasoning is not None:
        message.reasoning.CopyFrom(pb.Reasoning(**params.reasoning.model_dump(exclude_none=True)))
    if params.choice is not None:
        message.choice.choices.extend(params.choice)
    if params.json_object:
        message.json_object.SetInParent()
    return message


def finished(end: pb.Finished) -> Finished:
    """Convert the end of an output."""
    usage, timing, speculation = end.usage, end.timing, end.speculation
    times = speculation.times
    return Finished(
        index=end.index,
        finish_reason=FinishReason(end.finish_reason),
        matched_stop=end.matched_stop,
        usage=Usage(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens),
        speculation=SpeculationStats(
            drafted=speculation.drafted,
            accepted=speculation.accepted,
            steps=speculation.steps,
            accepted_by_position=tuple(speculation.accepted_by_position),
            drafter=speculation.drafter,
            times=StepTimes(times.draft_s, times.verify_s, times.sample_s, times.host_s),
            synthetic=speculation.synthetic,
        ),
        timing=Timing(
            timing.queued_s, timing.prefill_s, timing.first_token_s, timing.total_s, timing.constraint_compile_s
        ),
        constraint_complete=end.constraint_complete if end.HasField("constraint_complete") else None,
        json_valid=end.json_valid if end.HasField("json_valid") else None,
        seed=end.seed,
        system_fingerprint=end.system_fingerprint,
        unenforced=tuple(end.unenforced),
        broken_off=BrokenOff(end.broken_off.pointer, end.broken_off.byte_offset)
        if end.HasField("broken_off")
        else None,
        tags=tuple(
            TagSpan(tag.name, tag.begin, tag.start, tag.content_start, tag.content_end, tag.end) for tag in end.tags
        ),
        tool_calls=tuple(ToolCall(call.id, call.name, call.arguments) for call in end.tool_calls),
        reasoning_tokens=end.reasoning_tokens,
    )


def _logprobs(position: pb.TokenLogprobs) -> PositionLogprobs:
    top = tuple(TokenLogprob(entry.token_id, entry.logprob, rank) for rank, entry in enumerate(position.top, start=1))
    return PositionLogprobs(TokenLogprob(position.token_id, position.logprob, position.rank), top)


def constraint_report(answer: pb.CheckConstraintResponse) -> ConstraintReport:
    """A server's report on a constraint."""
    return ConstraintReport(
        backend=answer.backend,
        runs_on=answer.runs_on,
        states=answer.states,
        token_classes=answer.token_classes,
        token_masks=answer.token_masks,
        compile_s=answer.compile_s,
        unenforced=tuple(answer.unenforced),
        no_automaton=answer.no_automaton,
        closed=tuple(answer.closed),
    )
