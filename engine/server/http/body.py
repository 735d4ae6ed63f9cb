"""The bodies of HTTP requests: their JSON, their common fields, and errors that name each wrong one."""

from __future__ import annotations

import asyncio
import codecs
import json
from collections.abc import Mapping
from email.message import Message
from itertools import islice
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError, from_json
from starlette.requests import Request

from draftline.engine.errors import FieldViolation, InvalidRequestError
from draftline.engine.server.config import ServerConfig
from draftline.engine.server.http.errors import DisconnectedError, HttpError
from draftline.engine.server.http.fields import INERT, INERT_IN_CONSTRAINT, Inert, refused
from draftline.engine.server.limits import MAX_ENTRIES, refuse
from draftline.engine.validation import quoted
from draftline.structured.members import RepeatedMemberError, check_members

_LONG = 200
"""Characters of a wrong text from which an error quotes."""


_MAX_REFUSED = 16
"""Unknown or unsupported fields of an object that an error names. Each is compared with all known ones."""

_T = TypeVar("_T")

ListOf = Annotated[list[_T], Field(fail_fast=True)]
"""A list of a body, of which only the first wrong entry is named: a body has room for millions of them."""


def _few(value: object) -> object:
    if isinstance(value, dict) and len(value) > MAX_ENTRIES:
        raise PydanticCustomError("too_long", f"has {len(value)} entries; at most {MAX_ENTRIES} fit")
    return value


class Body(BaseModel):
    """An object of a body. Unknown fields and values of other types are errors."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, protected_namespaces=())

    inert: ClassVar[Mapping[str, Inert]] = {}
    """The fields without effect."""

    @model_validator(mode="before")
    @classmethod
    def _without_inert_fields(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        known = {field.alias or name: field for name, field in cls.model_fields.items()}
        # Null means unset.
        read = {n: v for n, v in values.items() if n in known and (v is not None or known[n].is_required())}
        others = {n: v for n, v in values.items() if n not in known}
        wrong = list(islice(refused(others, cls.inert, known), _MAX_REFUSED))
        kinds = get_args(known["type"].annotation) if "type" in known else ()
        if isinstance(kind := values.get("type"), str) and kinds and not (kind in kinds or type(None) in kinds):
            # What else is unknown in an object of an unknown kind says nothing, unless there is a reason.
            expected = FieldViolation("type", f"Input should be {' or '.join(map(repr, kinds))}, not {quoted(kind)}")
            wrong = [violation for violation in wrong if violation.field in cls.inert] or [expected]
        refuse(*wrong)  # the paths begin at the object
        return read


class StreamOptions(Body):
    """Options of a streamed answer."""

    include_usage: bool | None = Field(default=None, description="send a last chunk with the usage")
    continuous_usage_stats: bool | None = Field(
        default=None, description="vLLM's: give each chunk the usage of its choice so far"
    )
    include_obfuscation: bool | None = Field(default=None, description="no effect: chunks are not padded")


class JsonSchema(Body):
    """A JSON Schema with a label. The model sees neither: its output follows the schema, strictly in every case."""

    name: str | None = Field(default=None, description="a label")
    description: str | None = Field(default=None, description="a label")
    schema_: dict[str, Any] | bool | None = Field(default=None, alias="schema", description="the schema")
    strict: bool | None = Field(default=None, description="no effect: schemas are always enforced exactly")


class ResponseFormat(Body):
    """The form of the output."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(Body):
    """vLLM's constraint on the output: one of the fields before ``whitespace``, and options of `Constraint`."""

    inert = INERT_IN_CONSTRAINT

    json_: dict[str, Any] | str | None = Field(default=None, alias="json", description="a JSON Schema, or its text")
    regex: str | None = Field(default=None, description="a regular expression that the whole output matches")
    choice: ListOf[str] | None = Field(default=None, description="texts, one of which is the output")
    grammar: str | None = Field(default=None, description="a grammar in Lark or EBNF")
    structural_tag: dict[str, Any] | str | None = Field(
        default=None, description="free text with constrained tags, in XGrammar's JSON, or its text"
    )
    json_object: bool | None = Field(default=None, description="any JSON object")
    whitespace: Literal["compact", "spaced", "free"] | None = Field(default=None, description="between tokens of JSON")
    best_effort: bool | None = Field(default=None, description="accept keywords that cannot be enforced")
    close_within_budget: bool | None = Field(default=None, description="finish within max_tokens")
    integers: Literal["plain", "standard"] | None = Field(default=None, description="texts of a schema's integers")
    member_order: Literal["schema", "any"] | None = Field(default=None, description="the order of an object's members")
    close_objects: bool | None = Field(default=None, description="leave out members that a schema does not mention")


class SpeculationOptions(Body):
    """Whether the request drafts. It changes the speed, never the output."""

    enabled: bool | None = None
    draft_tokens: int | None = None


class Generating(Body):
    """The fields of every endpoint that generates. Those without a note are `SamplingParams`'s."""

    inert = INERT

    model: str | None = Field(default=None, description="the served model; may be left out")
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | ListOf[str] | None = None
    stop_token_ids: ListOf[int] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    logit_bias: Annotated[dict[str, float] | None, BeforeValidator(_few)] = None
    bad_words: ListOf[str] | None = None
    allowed_token_ids: ListOf[int] | None = None
    structured_outputs: StructuredOutputs | None = None
    truncate_prompt_tokens: int | None = None
    priority: int | None = Field(default=None, description="requests of a higher priority run first; 0 if unset")
    timeout: float | None = Field(default=None, gt=0, description="seconds after which the request fails with 504")
    speculation: SpeculationOptions | None = Field(default=None, description="speculative decoding")
    stream: bool | None = Field(default=None, description="answer with events")


class Streamed(Generating):
    """The fields of completions and chats."""

    n: int | None = None
    prompt_logprobs: int | None = Field(
        default=None, description="list this many of the likeliest tokens for the prompt; not in a stream"
    )
    stream_options: StreamOptions | None = None

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with a chunk of the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def counts_chunks(self) -> bool:
        """Whether each chunk of a stream has the usage of its choice so far."""
        return self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)


def check_stream(body: Streamed) -> None:
    """Raise `InvalidRequestError` if there are options of a stream but no stream, or options that a stream lacks."""
    if body.stream_options is not None and not body.stream:
        raise InvalidRequestError(FieldViolation("stream_options", "is set, but stream is not"))
    if body.stream and body.prompt_logprobs is not None:
        raise InvalidRequestError(FieldViolation("prompt_logprobs", "is not supported in a stream"))


_BodyT = TypeVar("_BodyT", bound=Body)


async def read(request: Request, kind: type[_BodyT], config: ServerConfig) -> _BodyT:
    """Read the body of a request.

    Raises:
        HttpError: it is no JSON, too large, or does not arrive.
        DisconnectedError: the client has gone.
        InvalidRequestError: naming every wrong, unknown or unsupported field.
    """
    _check_type(request)
    limit = config.max_request_mib << 20
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit:
        raise _too_large(config)
    try:
        async with asyncio.timeout(config.stall_timeout):
            content = await _received(request, limit)
    except TimeoutError:
        raise HttpError(408, f"the body did not arrive within {config.stall_timeout:g} s") from None
    if content is None:
        raise _too_large(config)
    return parse(kind, _decoded(content))


def parse(kind: type[_BodyT], content: object) -> _BodyT:
    """Check a decoded body.

    Raises:
        InvalidRequestError: naming every wrong, unknown or unsupported field.
    """
    if not isinstance(content, dict):
        raise HttpError(400, "the body must be a JSON object")
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise InvalidRequestError(*_violations(error, content)) from None


def _check_type(request: Request) -> None:
    header = Message()
    header["content-type"] = request.headers.get("content-type", "")
    if header.get_content_type() != "application/json" or not _is_utf8(header.get_content_charset("utf-8")):
        raise HttpError(415, "the body must be JSON in UTF-8: send the header content-type: application/json")
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise HttpError(415, "the body must not be compressed")


def _is_utf8(charset: str) -> bool:
    try:
        return codecs.lookup(charset).name == "utf-8"
    except (LookupError, ValueError):
        return False


async def _received(request: Request, limit: int) -> bytes | None:
    """The whole body; None if it is longer than ``limit``."""
    content = bytearray()
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise DisconnectedError
        content += message.get("body", b"")
        if len(content) > limit:
            return None
        if not message.get("more_body", False):
            return bytes(content)


def _too_large(config: ServerConfig) -> HttpError:
    return HttpError(413, f"the body is larger than {config.max_request_mib} MiB, this server's max_request_mib")


def _decoded(content: bytes) -> object:
    try:
        value = from_json(content, allow_inf_nan=False)
    except ValueError as error:
        raise HttpError(400, f"the body is not JSON: {error}") from None
    try:
        check_members(content)
    except RepeatedMemberError as error:
        raise HttpError(400, f"the body {error}") from None
    return value


def _violations(error: ValidationError, values: object) -> list[FieldViolation]:
    """The violations, by their places in the body."""
    found: dict[str, list[str]] = {}
    wrong: dict[str, str] = {}
    for detail in error.errors(include_url=False):
        path = _path(detail["loc"], values, is_missing=detail["type"] == "missing")
        match detail.get("ctx"):
            case {"error": InvalidRequestError(violations=refusals)}:
                problems = [(f"{path}.{each.field}" if path else each.field, each.description) for each in refusals]
            case _:
                problems = [(path, _OBJECT.get(detail["type"], detail["msg"]).removeprefix("Value error, "))]
                if detail["type"] not in ("missing", "too_long"):  # these say all
                    wrong[path] = _shown(detail["input"], path, is_choice=detail["type"] == "literal_error")
        for name, message in problems:
            if message not in found.setdefault(name, []):  # each member of a union says what is wrong
                found[name].append(message)
    return [
        FieldViolation(name, _either(messages) + (f", not {wrong[name]}" if name in wrong else ""))
        for name, messages in found.items()
        # A union's members that are of another kind than the value say nothing about what is wrong in it.
        if not any(other.startswith((f"{name}.", f"{name}[")) for other in found)
    ]


_PROMPT = ("prompt", "messages", "input", "instructions")
"""Fields with the prompt's texts. The request log has the errors, and promises to have no such text."""

_OBJECT = dict.fromkeys(("model_type", "dict_type"), "Input should be an object")
"""Messages that pydantic words for Python, in JSON's words."""


def _either(messages: list[str]) -> str:
    return " or ".join([messages[0], *(message.removeprefix("Input should be ") for message in messages[1:])])


def _shown(value: object, path: str, *, is_choice: bool) -> str:
    """A value in JSON's words. What it holds is not shown, for it may be large, and a text may be the prompt's."""
    match value:
        case dict():
            return "an object"
        case list():
            return "a list"
        case str() if path.startswith(_PROMPT) and not is_choice:
            return "a string"
        case str():
            return quoted(value[:_LONG])
        case None | bool():
            return json.dumps(value)
        case float() if value.is_integer():
            return repr(value)[:_LONG]  # 5.0 is no integer, and its text says so
        case _:
            return quoted(value)


def _path(location: tuple[int | str, ...], at: object, *, is_missing: bool) -> str:
    """``messages[0].content``, without the parts of pydantic's location that stand for members of a union."""
    path = ""
    for index, part in enumerate(location, 1):
        if isinstance(part, int) and isinstance(at, list) and part < len(at):
            path, at = f"{path}[{part}]", at[part]
        elif isinstance(part, str) and isinstance(at, dict) and (part in at or (is_missing and index == len(location))):
            path, at = f"{path}.{part}" if path else part, at.get(part)
    return path
