"""The lines of a batch: OpenAI's, or plain prompts; and the lines of its answers, in OpenAI's form."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftline.engine.errors import UsageError
from draftline.structured.members import RepeatedMemberError, unique_members

COMPLETIONS = "/v1/completions"
CHATS = "/v1/chat/completions"
URLS = (COMPLETIONS, CHATS, "/v1/responses")
"""The endpoints of lines."""

_LINE_FIELDS = {"custom_id", "method", "url", "body"}


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One request.

    Attributes:
        custom_id: its name; ``line-7`` for a line without one.
        url: the endpoint.
        body: of the request; None if the line is wrong.
        error: why it is wrong; empty if it is not.
        is_plain: whether it was a plain prompt.
    """

    custom_id: str
    url: str = ""
    body: dict[str, Any] | None = None
    error: str = ""
    is_plain: bool = False


@dataclass(frozen=True, slots=True)
class PlainPrompts:
    """How plain prompts become requests.

    Attributes:
        defaults: fields of a body that a line may replace.
        as_chat: send each prompt as a user's message.
    """

    defaults: Mapping[str, Any]
    as_chat: bool


def read_lines(path: Path, plain: PlainPrompts) -> Iterator[BatchLine]:
    """Read the requests of a file, one a line. Empty lines are left out.

    Raises:
        UsageError: the file cannot be read, or not twice.
    """
    try:
        with path.open("rb") as file:
            if not file.seekable():  # a second reader, after `check_ids`, would find nothing
                raise UsageError(f"{path}: is a pipe, but the requests are read twice: write them to a file first")
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _parsed(line, f"line-{number}", plain)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error


def check_ids(path: Path, plain: PlainPrompts) -> set[str]:
    """The names of all requests of a file.

    Raises:
        UsageError: two requests have one name, or the file cannot be read twice.
    """
    ids: set[str] = set()
    for line in read_lines(path, plain):
        if line.custom_id in ids:
            raise UsageError(f"{path}: two lines have the custom_id {line.custom_id!r}")
        ids.add(line.custom_id)
    return ids


def has_only_bodies(path: Path, plain: PlainPrompts) -> bool:
    """Whether a file has requests, and none of them is a plain prompt."""
    return {line.is_plain for line in read_lines(path, plain) if line.body is not None} == {False}


def _parsed(line: bytes, name: str, plain: PlainPrompts) -> BatchLine:
    try:
        content = json.loads(line, object_pairs_hook=unique_members)
    except RepeatedMemberError as error:
        return BatchLine(name, error=f"the line {error}")
    except (ValueError, RecursionError) as error:
        return BatchLine(name, error=f"the line is not JSON: {error}")
    if isinstance(content, str):
        content = {"prompt": content}
    if not isinstance(content, dict):
        return BatchLine(name, error="the line must be a JSON object or text")
    given = content.pop("custom_id", name)
    if not isinstance(given, str) or not given:
        return BatchLine(name, error="custom_id must be a text")
    if "body" not in content:
        return _plain(given, content, plain)
    unknown = content.keys() - _LINE_FIELDS
    if unknown:
        return BatchLine(given, error=f"{min(unknown)}: is not a field of a line")
    if content.get("method", "POST") != "POST":
        return BatchLine(given, error="method must be POST")
    if content.get("url") not in URLS:
        return BatchLine(given, error=f"url must be one of {', '.join(URLS)}")
    if not isinstance(content["body"], dict):
        return BatchLine(given, error="body must be a JSON object")
    if content["body"].get("stream"):
        return BatchLine(given, error="body.stream: the answers of a batch are whole")
    return BatchLine(given, content["url"], content["body"])


def _plain(name: str, content: dict[str, Any], plain: PlainPrompts) -> BatchLine:
    if ("prompt" in content) == ("messages" in content):
        return BatchLine(name, error="the line needs a body, or one of prompt and messages")
    if plain.as_chat and isinstance(content.get("prompt"), str):
        content["messages"] = [{"role": "user", "content": content.pop("prompt")}]
    url = CHATS if "messages" in content else COMPLETIONS
    defaults = dict(plain.defaults)
    if url == CHATS and "logprobs" in defaults:
        defaults |= {"logprobs": True, "top_logprobs": defaults["logprobs"]}
    return BatchLine(name, url, defaults | content, is_plain=True)


def answer_line(custom_id: str, status: int, body: Any) -> bytes:
    """The line of an answer. One with another status than 200 is an error."""
    error = None
    if status != 200:
        code, message = problem_of(body)
        error = {"code": code or str(status), "message": message}
    return _line(custom_id, {"status_code": status, "request_id": None, "body": body}, error)


def problem_of(body: Any) -> tuple[str | None, str]:
    """The code of an error's body, which it may not have, and the message; the whole body where it is not OpenAI's."""
    problem = body.get("error") if isinstance(body, dict) else None
    if not isinstance(problem, dict):
        return None, str(body)
    return problem.get("code"), problem.get("message", "")


def invalid_line(custom_id: str, message: str) -> bytes:
    """The line of a request that was not sent, since its line is invalid."""
    return _line(custom_id, None, {"code": "invalid_line", "message": message})


def _line(custom_id: str, response: object, error: object) -> bytes:
    content = {"id": f"batch_req_{custom_id}", "custom_id": custom_id, "response": response, "error": error}
    return json.dumps(content, ensure_ascii=False).encode(errors="replace") + b"\n"
