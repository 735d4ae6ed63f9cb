"""Frames of HTTP/2 (RFC 9113), for clients of gRPC that no library is: those that read nothing, or ping as they like."""

from __future__ import annotations

import asyncio
import struct

DATA = 0
HEADERS = 1
SETTINGS = 4
PING = 6
GOAWAY = 7
ACK = 1
END_STREAM = 1
END_HEADERS = 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

_INITIAL_WINDOW_SIZE = 4


def frame(kind: int, payload: bytes = b"", flags: int = 0, stream: int = 0) -> bytes:
    """A frame; those of the connection have the stream 0."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


async def call_without_reading(address: str, method: str, request: bytes) -> asyncio.StreamWriter:
    """Call a method of a gRPC server at ``host:port``, with no room for any byte of the answer."""
    host, _, port = address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    block = b"".join(b"\0" + _text(name) + _text(value) for name, value in headers.items())
    writer.write(
        PREFACE
        + frame(SETTINGS, struct.pack(">HI", _INITIAL_WINDOW_SIZE, 0))
        + frame(HEADERS, block, END_HEADERS, 1)
        + frame(DATA, b"\0" + struct.pack(">I", len(request)) + request, END_STREAM, 1)
    )
    await writer.drain()
    return writer


def _text(text: str) -> bytes:
    """A short text as HPACK has it, without compression."""
    return bytes([len(text)]) + text.encode()
