"""``HttpTarget``: any server of OpenAI's API over HTTP, with streams of server-sent events."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Self

import httpx2
from typing_extensions import override

from draftline.engine.bench.load.answers import Answer
from draftline.engine.bench.targets.target import Question, RequestError, Target, TargetInfo
from draftline.engine.chat.messages import Chat
from draftline.engine.client.access import checked_token
from draftline.engine.client.tls import Tls
from draftline.engine.errors import CallFailedError, UsageError

_VOCAB_SIZE = 30_000
"""Token ids below this exist in all common vocabularies. Servers of OpenAI's API do not tell the size of theirs."""

ASKED_S = 30.0
"""The longest wait for what a server says of itself. An answer to a request may take any time."""

_IDLE_S = 3.0
"""How long a connection is kept for the next request. Many servers close theirs after 5 s, perhaps just when one is
sent."""

_CONNECTION = "CONNECTION"
_PROTOCOL = "PROTOCOL"


class HttpTarget(Target):
    """A server of OpenAI's API. Texts and token ids go to ``/v1/completions``, chats to ``/v1/chat/completions``."""

    def __init__(self, http: httpx2.AsyncClient, info: TargetInfo) -> None:
        """Use a client, which this closes; `connect` makes one."""
        self._http = http
        self.info = info

    @classmethod
    async def connect(cls, url: str, token: str | None, model: str | None, tls: Tls | None = None) -> Self:
        """Connect to a server. The URL may end in ``/v1``.

        Args:
            url: the server's.
            token: the bearer token; None without one.
            model: the model of every request; the server's first where None.
            tls: the certificates of HTTPS; the system's authorities, and no certificate of the client, where None.

        Raises:
            UsageError: a file of certificates cannot be read.
            CallFailedError: no server answers, or it does not list its models.
            InvalidRequestError: no header can hold the token.
        """
        # A server that compressed its stream might hold tokens back.
        headers = {"accept-encoding": "identity"}
        if token is not None:
            headers["authorization"] = f"Bearer {checked_token(token)}"
        # No limit of connections: the workload says how many requests run at once.
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=_IDLE_S)
        verify = True if tls is None else _context(tls)
        http = httpx2.AsyncClient(
            base_url=url.rstrip("/").removesuffix("/v1"), headers=headers, limits=limits, timeout=None, verify=verify
        )
        try:
            return cls(http, await _info(http, url, model))
        except BaseException:
            await http.aclose()
            raise

    @override
    async def ask(self, question: Question, answer: Answer) -> None:
        path, body = self._body(question)
        try:
            async with self._http.stream("POST", path, json=body) as response:
                if response.status_code != 200:
                    raise RequestError(str(response.status_code), _problem(await response.aread()))
                await _read(response, answer)
        except httpx2.HTTPError as error:
            raise RequestError(_CONNECTION, _reason(error)) from error

    @override
    async def close(self) -> None:
        await self._http.aclose()

    def _body(self, question: Question) -> tuple[str, dict[str, Any]]:
        body: dict[str, Any] = {
            "model": self.info.model,
            "max_tokens": question.max_tokens,
            "temperature": question.temperature,
            "seed": question.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if question.ignore_eos:
            body["ignore_eos"] = True  # vLLM's name, which other servers have too
        prompt = question.prompt
        if isinstance(prompt, Chat):
            messages = [{"role": role, "content": content} for role, content in prompt.messages]
            return "/v1/chat/completions", body | {"messages": messages}
        return "/v1/completions", body | {"prompt": prompt if isinstance(prompt, str) else list(prompt)}


async def _read(response: httpx2.Response, answer: Answer) -> None:
    """Read a stream of chunks to its end, so that the next request can use the connection.

    Raises:
        RequestError: a chunk is an error or none at all, the stream breaks off, or its tokens are not counted.
    """
    has_ended = False
    data = b""
    async for data, now in _events(response):
        if data == b"[DONE]":
            has_ended = True
            continue
        try:
            has_ended = _take(json.loads(data), now, answer) or has_ended
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise RequestError(_PROTOCOL, f"the stream has what is no chunk of an answer: {_start_of(data)}") from error
    if not data:
        kind = response.headers.get("content-type", "without a type")
        raise RequestError(_PROTOCOL, f"the answer is no stream of events: its body is {kind}")
    if not has_ended:
        raise RequestError(_CONNECTION, "the stream ended before the answer did")
    if answer.arrivals and not answer.tokens:
        raise RequestError(_PROTOCOL, "the server does not count the tokens: its stream has no usage")


def _take(chunk: dict[str, Any], now: float, answer: Answer) -> bool:
    """Write a chunk into the answer. Returns whether it ends the answer.

    Raises:
        RequestError: the chunk is an error.
        TypeError: it has another form, as do ValueError and AttributeError.
    """
    if error := chunk.get("error"):
        details = error if isinstance(error, dict) else {"message": error}
        raise RequestError(str(details.get("code") or "ERROR"), str(details.get("message")))
    has_ended = False
    for choice in chunk.get("choices") or ():
        delta = choice.get("delta") or {}
        text = choice.get("text") or delta.get("content") or ""
        reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
        if text or reasoning:
            answer.arrivals.append((now, 0))
            answer.text += text
        has_ended = has_ended or bool(choice.get("finish_reason"))
    if usage := chunk.get("usage"):
        _count(usage, answer)
    return has_ended


def _count(usage: Mapping[str, Any], answer: Answer) -> None:
    answer.tokens = int(usage.get("completion_tokens") or 0)
    answer.prompt_tokens = int(usage.get("prompt_tokens") or 0)
    answer.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    details = usage.get("completion_tokens_details") or {}
    if (accepted := details.get("accepted_prediction_tokens")) is not None:
        answer.accepted = accepted
        answer.drafted = accepted + (details.get("rejected_prediction_tokens") or 0)


async def _events(response: httpx2.Response) -> AsyncIterator[tuple[bytes, float]]:
    """The data of each event, and when its last byte arrived.

    An event here is one line, as servers of this API send it.
    """
    rest = b""
    now = 0.0
    async for piece in response.aiter_bytes():
        now = time.perf_counter()
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip(), now
    if rest.startswith(b"data:"):
        yield rest[5:].strip(), now


def _reason(error: httpx2.HTTPError) -> str:
    """The kind of an error, and its message where it has one."""
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def _start_of(data: bytes) -> str:
    return data[:100].decode(errors="replace")


def _problem(body: bytes) -> str:
    """The message of an error's body."""
    try:
        content = json.loads(body)
        error = content.get("error", content)
        return str(error["message"] if isinstance(error, dict) and "message" in error else error)
    except (ValueError, AttributeError):
        return body[:300].decode(errors="replace")


async def _info(http: httpx2.AsyncClient, url: str, model: str | None) -> TargetInfo:
    try:
        response = await http.get("/v1/models", timeout=ASKED_S)
    except httpx2.TimeoutException:
        raise CallFailedError(f"{url}: does not answer within {ASKED_S:g} s") from None
    except httpx2.HTTPError as error:
        raise CallFailedError(f"{url}: {_reason(error)}") from error
    if response.status_code != 200:
        raise CallFailedError(f"{url}/v1/models: {response.status_code}: {_problem(response.content)}")
    try:
        listed: Sequence[Mapping[str, Any]] = response.json().get("data") or []
        names = [str(each["id"]) for each in listed]
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        raise CallFailedError(f"{url}/v1/models: is no list of models, as servers of OpenAI's API have") from None
    if not names and model is None:
        raise CallFailedError(f"{url}: the server lists no models; name one with --model")
    if model is not None and names and model not in names:
        raise UsageError(f"--model: {model}: the server has {', '.join(names)}")
    chosen = model or names[0]
    entry = next((each for each in listed if each["id"] == chosen), {})
    engine, version = await _software(http, str(entry.get("owned_by") or ""))
    return TargetInfo(
        protocol="http",
        engine=engine,
        version=version,
        model=chosen,
        device=None,
        dtype=None,
        vocab_size=_VOCAB_SIZE,
        max_model_len=entry.get("max_model_len"),
        form="text",
    )


async def _software(http: httpx2.AsyncClient, owner: str) -> tuple[str, str | None]:
    """The name and the version of the server's software, as far as it tells. Each engine has its own endpoint."""
    places = (("/version", "version"), ("/get_server_info", "version"), ("/props", "build_info"))
    version = None
    for path, name in places:
        try:
            response = await http.get(path, timeout=ASKED_S)
            found = response.json().get(name) if response.status_code == 200 else None
        except (httpx2.HTTPError, ValueError, AttributeError):
            continue
        if found:
            version = str(found)
            break
    return owner or "unknown", version


def _context(tls: Tls) -> ssl.SSLContext:
    """Read the files of certificates.

    Raises:
        UsageError: one cannot be read.
    """
    try:
        context = ssl.create_default_context(cafile=tls.ca)
    except OSError as error:
        raise UsageError(f"--ca: {tls.ca}: {error.strerror or error}") from error
    if tls.cert is not None:
        try:
            context.load_cert_chain(tls.cert, tls.key)
        except OSError as error:
            problem = error.strerror or error
            raise UsageError(f"--client-cert and --client-key: {tls.cert}, {tls.key}: {problem}") from error
    return context
