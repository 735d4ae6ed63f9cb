"""``HttpProtocol``: uvicorn's HTTP/1.1 protocol, with bounds on what a client can hold without asking for anything.

uvicorn waits without limit for the rest of a request's headers and for a client to read, keeps all headers, and queues
pipelined requests. A client that pipelines is disconnected: its first request could otherwise not be cancelled when it
disconnects.

uvicorn also drops the body of a request that asks for another protocol, as Java's client does in each of its first
requests (``upgrade: h2c``). Here the connection stays with HTTP/1.1, and the request is served.

It also serves a request whose line names HTTP/2.0, which no HTTP/2 request has. Here that is an error, as in nginx.

And it sends chunks to every client. One of HTTP/1.0 knows none (RFC 9112, 6.1), so a stream to it ends with the
connection.
"""

from __future__ import annotations

import asyncio
from functools import partial
from http import HTTPStatus
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from pydantic_core import to_json
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from draftline.engine.server.http.errors import HttpError, error_body

HEADERS_TIMEOUT_S = 20.0
"""Seconds from a connection, or a request's first byte, until its headers are complete."""

MAX_HEADERS = 1 << 16
"""Bytes of a request's line and headers."""

ABORT = "abort"
"""The key of a request's scope state whose value closes the connection at once, and drops what was not sent."""

STALLED = "stalled"
"""A key of a request's scope state: its connection was closed because the client read nothing."""

_OTHER_VERSION = "2.0"
"""The version that the parser takes in a request's line, though HTTP/2 has no such line (RFC 9110, 15.6.6)."""

_WITHOUT_CHUNKS = ("0.9", "1.0")
"""Versions of HTTP before chunks."""


async def _respond_until_close(
    protocol: HttpProtocol, app: ASGIApp, scope: Scope, receive: Receive, send: Send
) -> None:
    """Run ``app`` for a client that knows no chunks: what it sends without a length ends with the connection."""
    cycle, has_length = protocol.cycle, False

    async def send_plain(message: Message) -> None:
        nonlocal has_length
        if message["type"] == "http.response.start":
            has_length = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
        if not has_length:
            cycle.chunked_encoding = False
            cycle.expected_content_length = len(message.get("body", b""))  # uvicorn counts down to 0 at the end
        await send(message)

    await app(scope, receive, send_plain)


class HttpProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *arguments: Any, stall_timeout: float, **options: Any) -> None:
        """A connection that closes if its client does not read for ``stall_timeout`` seconds. See uvicorn's class."""
        super().__init__(*arguments, **options)
        self._stall_timeout = stall_timeout
        self._stalling: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        self._in_headers = True
        self._is_over = False  # whether what still comes is ignored
        self._upgrade = False  # whether the request that is parsed asks for another protocol

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_headers()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._stop_stalling()
        if isinstance(exc, TimeoutError) and self.scope is not None:  # the socket's own limit, of the same length
            self.scope["state"][STALLED] = True
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    # One timer for each time that unread data fills the buffer, instead of one for each message.
    @override
    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop_stalling()
        self._stalling = self.loop.call_later(self._stall_timeout, self._stall)

    @override
    def resume_writing(self) -> None:
        self._stop_stalling()
        super().resume_writing()

    @override
    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        while data and self.parser is not None and not self.transport.is_closing():
            fed = data
            if self._in_headers:  # no more of them than may come, however much arrives at once
                fed = data[: MAX_HEADERS - self._header_bytes]
                self._header_bytes += len(fed)
            if fed:
                self._feed(fed)
                data = data[len(fed) :]
            else:
                self._refuse(HttpError(431, f"the request's line and headers are larger than {MAX_HEADERS >> 10} KiB"))

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            if self._upgrade:
                self._parse_again(data[upgrade.args[0] :])
        except HttpParserError:
            self.send_400_response("the request is not valid HTTP/1.1")

    @override
    def on_message_begin(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._is_over = True
            self.transport.abort()
            return
        super().on_message_begin()
        self.scope["state"][ABORT] = self.transport.abort
        self._await_headers()

    @override
    def on_url(self, url: bytes) -> None:
        if not self._is_over:
            super().on_url(url)

    @override
    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_over:
            super().on_header(name, value)

    @override
    def on_headers_complete(self) -> None:
        if self._is_over:
            return
        if self.parser.get_http_version() == _OTHER_VERSION:
            self._is_over = True
            self._refuse(HttpError(505, f"HTTP/{_OTHER_VERSION}: this port speaks HTTP/1.1"))
            return
        # A CONNECT has no path, and uvicorn refuses it.
        self._upgrade = self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        if not self._upgrade:
            self._in_headers = False
            self._stop_waiting()
            if self.parser.get_http_version() in _WITHOUT_CHUNKS:  # the connection closes behind the response
                self.expect_100_continue = False  # RFC 9110, 10.1.1
                self.app = partial(_respond_until_close, self, self.config.loaded_app)
            super().on_headers_complete()

    @override
    def on_body(self, body: bytes) -> None:
        if not self._is_over:
            super().on_body(body)

    @override
    def on_message_complete(self) -> None:
        if not self._is_over and not self._upgrade:
            self._in_headers, self._header_bytes = True, 0  # of the next request
            super().on_message_complete()

    @override
    def send_400_response(self, msg: str) -> None:
        self._refuse(HttpError(400, msg))

    def _refuse(self, error: HttpError) -> None:
        """Answer in the form of all errors, and close the connection."""
        if self.transport.is_closing():
            return
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.abort()  # the client would take the answer for a part of the one that it reads
            return
        body = to_json(error_body(error))
        line = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n"
        head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write((line + head).encode() + body)
        self.transport.close()

    def _parse_again(self, body: bytes) -> None:
        """Parse the request without its wish for another protocol, with which the parser takes no body."""
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % (name, value) for name, value in self.headers if name != b"upgrade"]
        self.parser = HttpRequestParser(self)
        self._header_bytes = 0
        self.data_received(b"\r\n".join([*lines, b"", body]))

    def _stall(self) -> None:
        self.scope["state"][STALLED] = True
        self.transport.abort()

    def _stop_stalling(self) -> None:
        if self._stalling is not None:
            self._stalling.cancel()
            self._stalling = None

    def _await_headers(self) -> None:
        self._stop_waiting()
        self._deadline = self.loop.call_later(HEADERS_TIMEOUT_S, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
