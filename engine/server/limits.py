"""Bounds on the strings and lists of a request, checked before anything is made of them.

Only lengths are checked, so a refusal costs nothing. The values themselves are validated where they are converted. The
server's ``max_request_mib`` bounds the size of a whole message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any, Protocol, TypeVar

from draftline.engine.errors import FieldViolation, InvalidRequestError
from draftline.engine.params import CONSTRAINT_KINDS
from draftline.engine.protocol import EngineInfo
from draftline.engine.request.request import context_violations, text_violations, utf8_size

MAX_REQUEST_ID = 256
"""Characters of a request id that a client chooses."""

MAX_MESSAGES = 4096
"""Messages of a chat."""

MAX_ROLE = 64
"""Characters of a role."""

MAX_CALLS = 4096
"""Tool calls of all messages of a chat together. A template writes some text around each, however short it is."""

MAX_VARIABLES = 1 << 18
"""Characters of the JSON of a chat template's variables."""

MAX_ENTRIES = 4096
"""Entries of any other list. Each list also has a stricter limit of its own, with a more exact error."""

MAX_CUT = 1 << 20
"""Token ids of a prompt that is cut to its last ones, unless the context has room for more."""

MAX_CONSTRAINT = 1 << 18
"""Characters of a schema, an expression, a grammar, or all choices together."""

CONSTRAINT_TEXTS = tuple(kind for kind in CONSTRAINT_KINDS if kind not in ("choice", "json_object", "structural_tag"))
"""Kinds of constraints that are one text of at most `MAX_CONSTRAINT` characters. Its compiler bounds a structural tag,
which may hold many schemas."""

MAX_TRACEPARENT = 256
"""Characters of a trace context."""

MAX_DETOKENIZE = 1 << 20
"""Tokens of one Detokenize."""

MAX_DETOKENIZED = 4_000_000
"""Bytes of the text that one Detokenize answers with over gRPC, whose clients take messages of up to 4 MiB by
default."""


class Message(Protocol):
    """A chat message of any face."""

    @property
    def role(self) -> str:
        """The author's role."""
        ...

    @property
    def tool_calls(self) -> Sized | None:
        """The calls that the message made."""
        ...


_Message = TypeVar("_Message", bound=Message)


def length_violations(value: Sized, limit: int, field: str, unit: str) -> Iterator[FieldViolation]:
    """A violation if ``value`` has more than ``limit`` entries; ``unit`` names them in the message."""
    if len(value) > limit:
        yield FieldViolation(field, f"has {len(value)} {unit}; at most {limit} fit")


def token_violations(ids: Sized, info: EngineInfo, field: str, *, cut: bool) -> Iterator[FieldViolation]:
    """A violation if a prompt has too many token ids. A prompt that is ``cut`` may exceed the context.

    All of its ids are checked, and the server serves nothing else meanwhile.
    """
    if cut:
        yield from length_violations(ids, max(MAX_CUT, info.max_model_len), field, "token ids")
    else:
        yield from context_violations(field, len(ids), info)


MAX_TOOLS = 1024
"""Tools of one chat."""


def chat_violations(
    messages: Sequence[_Message], texts_of: Callable[[_Message], Iterable[str]], info: EngineInfo, field: str
) -> Iterator[FieldViolation]:
    """The violations of a chat: too many messages or calls, or messages that are too long.

    Args:
        messages: the messages of any face.
        texts_of: all texts of one that a template may show.
        info: the engine's.
        field: the path of the messages.
    """
    if len(messages) > MAX_MESSAGES:
        yield from length_violations(messages, MAX_MESSAGES, field, "messages")
        return
    for index, message in enumerate(messages):
        yield from length_violations(message.role, MAX_ROLE, f"{field}[{index}].role", "characters")
    calls = sum(len(message.tool_calls or ()) for message in messages)
    if calls > MAX_CALLS:
        yield FieldViolation(field, f"have {calls} tool calls; at most {MAX_CALLS} fit")
        return
    yield from text_violations(sum(utf8_size(text) for message in messages for text in texts_of(message)), info, field)


def tool_violations(tools: Sequence[Any], info: EngineInfo, field: str) -> Iterator[FieldViolation]:
    """The violations of a chat's tools: too many, or too long together."""
    if len(tools) > MAX_TOOLS:
        yield from length_violations(tools, MAX_TOOLS, field, "tools")
        return
    size = sum(utf8_size(tool.description) + utf8_size(tool.parameters) for tool in tools)
    yield from text_violations(size, info, field)


def choice_violations(choices: Sequence[str], field: str) -> Iterator[FieldViolation]:
    """The violation of a constraint's choices: too many, or too long together."""
    if len(choices) > MAX_ENTRIES:
        yield from length_violations(choices, MAX_ENTRIES, field, "entries")
    elif sum(map(len, choices)) > MAX_CONSTRAINT:
        yield FieldViolation(field, f"have more than {MAX_CONSTRAINT} characters together")


def sampling_violations(list_of: Callable[[str], Sized], info: EngineInfo, path: str) -> Iterator[FieldViolation]:
    """The violations of the lists among a request's sampling parameters: too many entries.

    Args:
        list_of: gives a list by its name.
        info: the engine's.
        path: comes before a name in a violation's field.
    """
    for name in ("stop", "stop_token_ids", "logit_bias"):
        yield from length_violations(list_of(name), MAX_ENTRIES, path + name, "entries")
    name = "allowed_token_ids"
    yield from length_violations(list_of(name), info.config.vocab_size, path + name, "token ids")


def refuse(*violations: FieldViolation) -> None:
    """Raise `InvalidRequestError` if there are violations."""
    if violations:
        raise InvalidRequestError(*violations)
