"""How much a message may hold: every string and every repeated field, looked at before anything is made of it.

Lengths only, so that refusing costs nothing; what the values must satisfy is checked where they are converted. The size of
a whole message is bounded by the server's max_request_mib.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized

from draftline.engine.errors import FieldViolation, InvalidRequestError
from draftline.engine.protocol import EngineInfo
from draftline.v1 import engine_pb2 as pb

MAX_MESSAGES = 4096
"""Messages of a chat."""

MAX_ROLE = 64
"""Characters of a role."""

MAX_ENTRIES = 4096
"""Entries of any other list; each has a stricter limit of its own, which says so more exactly."""

MAX_CONSTRAINT = 1 << 18
"""Characters of a schema, an expression, a grammar, or all choices together."""

MAX_TRACEPARENT = 256
"""Characters of a trace context."""

MAX_TOKEN_CHARS = 256
"""Characters of a prompt for each token that the model takes. Longest tokens have half as many, so what is refused would be
too long all the same; but tokenizing it would take seconds."""

MAX_DETOKENIZE = 1 << 20
"""Tokens of one Detokenize."""


def check_generate(request: pb.GenerateRequest, info: EngineInfo) -> None:
    """Refuse a request that holds too much.

    Raises:
        InvalidRequestError: naming every field that does.
    """
    _refuse(
        *check_text(request.text, info),
        *_chat(request.chat, info),
        *_most(request.token_ids.ids, info.max_model_len - 1, "token_ids.ids", "token ids"),
        *(
            violation
            for name in ("stop", "stop_token_ids", "logit_bias")
            for violation in _most(getattr(request.sampling, name), MAX_ENTRIES, f"sampling.{name}", "entries")
        ),
        *_constraint(request.constraint),
        *_most(request.traceparent, MAX_TRACEPARENT, "traceparent", "characters"),
    )


def check_constraint(constraint: pb.Constraint) -> None:
    """The same for a constraint alone."""
    _refuse(*_constraint(constraint))


def check_tokenize(request: pb.TokenizeRequest, info: EngineInfo) -> None:
    """The same for a text or chat to be tokenized."""
    _refuse(*check_text(request.text, info), *_chat(request.chat, info))


def check_detokenize(request: pb.DetokenizeRequest) -> None:
    """The same for tokens to be turned into text."""
    _refuse(*_most(request.token_ids, MAX_DETOKENIZE, "token_ids", "token ids"))


def check_text(text: str, info: EngineInfo, field: str = "text") -> Iterator[FieldViolation]:
    """What is wrong with the length of a prompt."""
    return _most(text, info.max_model_len * MAX_TOKEN_CHARS, field, "characters")


def _chat(chat: pb.Chat, info: EngineInfo) -> Iterator[FieldViolation]:
    too_many = list(_most(chat.messages, MAX_MESSAGES, "chat.messages", "messages"))
    yield from too_many
    if too_many:
        return
    for place, message in enumerate(chat.messages):
        yield from _most(message.role, MAX_ROLE, f"chat.messages[{place}].role", "characters")
        yield from check_text(message.content, info, f"chat.messages[{place}].content")


def _constraint(constraint: pb.Constraint) -> Iterator[FieldViolation]:
    for name in ("json_schema", "regex", "grammar"):
        yield from _most(getattr(constraint, name), MAX_CONSTRAINT, f"constraint.{name}", "characters")
    choices = constraint.choice.choices
    too_many = list(_most(choices, MAX_ENTRIES, "constraint.choice.choices", "entries"))
    yield from too_many
    if not too_many and sum(map(len, choices)) > MAX_CONSTRAINT:
        yield FieldViolation("constraint.choice.choices", f"have more than {MAX_CONSTRAINT} characters together")


def _most(value: Sized, most: int, field: str, what: str) -> Iterator[FieldViolation]:
    if len(value) > most:
        yield FieldViolation(field, f"has {len(value)} {what}; at most {most} fit")


def _refuse(*violations: FieldViolation) -> None:
    if violations:
        raise InvalidRequestError(*violations)
