"""The bounds of `draftline.engine.server.limits`, for the messages of ``draftline.v1.InferenceService``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from draftline.engine.errors import FieldViolation
from draftline.engine.protocol import EngineInfo
from draftline.engine.request.request import text_violations, utf8_size
from draftline.engine.server.limits import (
    CONSTRAINT_TEXTS,
    MAX_CONSTRAINT,
    MAX_DETOKENIZE,
    MAX_TOOLS,
    MAX_TRACEPARENT,
    MAX_VARIABLES,
    chat_violations,
    choice_violations,
    length_violations,
    refuse,
    sampling_violations,
    token_violations,
    tool_violations,
)
from draftline.v1 import engine_pb2 as pb


def check_generate(request: pb.GenerateRequest, info: EngineInfo) -> None:
    """Check the lengths of a request.

    Raises:
        InvalidRequestError: listing every field that is too long.
    """
    refuse(
        *text_violations(utf8_size(request.text), info, "text"),
        *_chat_violations(request.chat, info),
        *token_violations(
            request.token_ids.ids, info, "token_ids", cut=request.sampling.HasField("truncate_prompt_tokens")
        ),
        *sampling_violations(partial(getattr, request.sampling), info, "sampling."),
        *_constraint_violations(request.constraint),
        *length_violations(request.traceparent, MAX_TRACEPARENT, "traceparent", "characters"),
    )


def _chat_violations(chat: pb.Chat, info: EngineInfo) -> Iterator[FieldViolation]:
    yield from chat_violations(chat.messages, _texts, info, "chat.messages")
    yield from tool_violations(chat.tools, info, "chat.tools")
    yield from length_violations(chat.tool_choice.names, MAX_TOOLS, "chat.tool_choice.names", "names")
    yield from length_violations(chat.chat_template_kwargs, MAX_VARIABLES, "chat.chat_template_kwargs", "characters")


def _texts(message: pb.ChatMessage) -> Iterator[str]:
    """All texts of a message that a template may show."""
    yield from (message.content, message.reasoning, message.tool_call_id)
    for call in message.tool_calls:
        yield from (call.id, call.name, call.arguments)


def check_constraint(constraint: pb.Constraint) -> None:
    """Check the lengths of a constraint; see `check_generate`."""
    refuse(*_constraint_violations(constraint))


def check_tokenize(request: pb.TokenizeRequest, info: EngineInfo) -> None:
    """Check the lengths of a text or chat to be tokenized; see `check_generate`."""
    refuse(
        *text_violations(utf8_size(request.text), info, "text"),
        *_chat_violations(request.chat, info),
    )


def check_detokenize(request: pb.DetokenizeRequest) -> None:
    """Check the number of tokens to be turned into text; see `check_generate`."""
    refuse(*length_violations(request.token_ids, MAX_DETOKENIZE, "token_ids", "token ids"))


def _constraint_violations(constraint: pb.Constraint) -> Iterator[FieldViolation]:
    for name in CONSTRAINT_TEXTS:
        yield from length_violations(getattr(constraint, name), MAX_CONSTRAINT, f"constraint.{name}", "characters")
    yield from choice_violations(constraint.choice.choices, "constraint.choice.choices")
