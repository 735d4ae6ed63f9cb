"""``HttpTarget``: any server of OpenAI's API over HTTP, with streams of server-sent events."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Self

import httpx2
from typing_extensions import override

from draftline.engine.bench.load.answers import Answer
from draftline.engine.bench.targets.target import Question, RequestError, Target, TargetInfo
from draftline.engine.chat.messages import Chat
from draftline.engine.errors import CallFailedError, UsageError

_VOCAB_SIZE = 30_000
"""Token ids below this exist in all common vocabularies. Servers of OpenAI's API do not tell the size of theirs."""

_CONNECTION = "CONNECTION"


class HttpTarget(Target):
    """A server of OpenAI's API. Texts and token ids go to ``/v1/completions``, chats to ``/v1/chat/completions``."""

    def __init__(self, http: httpx2.AsyncClient, info: TargetInfo) -> None:
        """Use a client, which this closes; `connect` makes one."""
        self._http = http
        self.info = info

    @classmethod
    async def connect(cls, url: str, token: str | None, model: str | None, ca: str | None = None) -> Self:
        """Connect to a server. The URL may end in ``/v1``.

        Args:
            url: the server's.
            token: the bearer token; None without one.
            model: the model of every request; the server's first where None.
            ca: PEM file of the authorities to trust; the system's where None.

        Raises:
            CallFailedError: no server answers, or it refuses to list its models.
        """
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        # No limit of connections: the workload says how many requests run at once.
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        verify: Any = True if ca is None else _trust(ca)
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
            raise RequestError(_CONNECTION, f"{type(error).__name__}: {error}") from error

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
    """Read a stream of chunks.

    Raises:
        RequestError: one is an error, or there is no end.
    """
    async for data, now in _events(response):
        if data == b"[DONE]":
            return
        chunk = json.loads(data)
        if "error" in chunk:
            error = chunk["error"] if isinstance(chunk["error"], dict) else {"message": chunk["error"]}
            raise RequestError(str(error.get("code") or "ERROR"), str(error.get("message")))
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            text = choice.get("text") or delta.get("content") or ""
            reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
            if text or reasoning:
                answer.arrivals.append((now, 0))
                answer.text += text
        if usage := chunk.get("usage"):
            _count(usage, answer)
    if not answer.tokens:
        raise RequestError(_CONNECTION, "the stream ended before the answer did")


def _count(usage: Mapping[str, Any], answer: Answer) -> None:
    answer.tokens = usage.get("completion_tokens") or 0
    answer.prompt_tokens = usage.get("prompt_tokens") or 0
    answer.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    details = usage.get("completion_tokens_details") or {}
    if (accepted := details.get("accepted_prediction_tokens")) is not None:
        answer.accepted = accepted
        answer.drafted = accepted + (details.get("rejected_prediction_tokens") or 0)


async def _events(response: httpx2.Response) -> AsyncIterator[tuple[bytes, float]]:
    """The data of each event, and when its last byte arrived. An event here is one line, as servers of this API send it."""
    rest = b""
    async for piece in response.aiter_raw():
        now = time.perf_counter()
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip(), now


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
        response = await http.get("/v1/models")
    except httpx2.HTTPError as error:
        raise CallFailedError(f"{url}: {type(error).__name__}: {error}") from error
    if response.status_code != 200:
        raise CallFailedError(f"{url}/v1/models: {response.status_code}: {_problem(response.content)}")
    listed: Sequence[Mapping[str, Any]] = response.json().get("data") or []
    names = [str(each["id"]) for each in listed]
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
            response = await http.get(path)
            found = response.json().get(name) if response.status_code == 200 else None
        except (httpx2.HTTPError, ValueError, AttributeError):
            continue
        if found:
            version = str(found)
            break
    return owner or "unknown", version


def _trust(ca: str) -> Any:
    import ssl

    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise UsageError(f"--ca: {ca}: {error.strerror or error}") from error
