"""``ClientSession``: the client's end of one ``Session`` stream, and the requests that were submitted over it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from itertools import count
from typing import Any, NamedTuple

import grpc
import grpc.aio

from draftline.engine.client.convert import delta, finished, request_message
from draftline.engine.client.errors import call_error, error_of, size_limit, too_large
from draftline.engine.errors import EngineStoppedError
from draftline.engine.outputs import Failed, Update
from draftline.engine.protocol import GenerateRequest
from draftline.v1 import engine_pb2 as pb

_ACCEPTANCE_S = 5.0
"""The longest wait for a server's acceptance. Proxies may keep it back until there is a response."""

_FAILED_WRITE = "Internal error from Core"

Receiver = Callable[[Update], None]
"""Receives one request's updates, on the event loop. The last is a Finished or a Failed."""


class _Sent(NamedTuple):
    """A request that was submitted, and the receiver of its updates."""

    request: GenerateRequest
    receiver: Receiver


class ClientSession:
    """One stream. Its end ends every request that was submitted over it."""

    def __init__(self, open_call: Callable[[AsyncIterator[pb.SessionRequest]], Any]) -> None:
        """Open the stream.

        Args:
            open_call: the stub's ``Session``, with its metadata.
        """
        self._outbox: asyncio.Queue[pb.SessionRequest | None] = asyncio.Queue()
        self._sent: dict[str, _Sent] = {}
        self._names = (f"r{serial}" for serial in count())
        self._call = open_call(self._requests())
        self._reading = asyncio.create_task(self._read())

    @property
    def has_ended(self) -> bool:
        """Whether the stream takes no more requests."""
        return self._reading.done()

    def submit(self, request: GenerateRequest, receiver: Receiver) -> str:
        """Send a request, and return its name for `cancel`."""
        name = next(self._names)
        message = _submission(name, request)
        self._sent[name] = _Sent(request, receiver)
        self._outbox.put_nowait(message)
        return name

    def cancel(self, name: str) -> None:
        """Ask the server to end a request. No effect on one that has ended or was discarded."""
        if name in self._sent:
            self._outbox.put_nowait(pb.SessionRequest(request_id=name, cancel=pb.CancelRequest()))

    def discard(self, name: str) -> None:
        """Drop a request's receiver: what still comes of the request is ignored."""
        self._sent.pop(name, None)

    async def close(self) -> None:
        """Cancel the stream with all of its requests, and wait for its end."""
        self._call.cancel()
        await asyncio.wait({self._reading})

    async def _requests(self) -> AsyncIterator[pb.SessionRequest]:
        # A server that refuses the stream ends it at once. If a message is written meanwhile, gRPC reports the failed
        # write instead of the server's status. So nothing is written until the server has accepted the stream.
        with contextlib.suppress(grpc.aio.AioRpcError, TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._call.initial_metadata()), _ACCEPTANCE_S)
        while (message := await self._outbox.get()) is not None:
            yield message

    async def _read(self) -> None:
        error: Exception = EngineStoppedError("the server ended the session")
        limit: int | None = None
        try:
            async for response in self._call:
                self._dispatch(response)
        except grpc.aio.AioRpcError as failed:
            # gRPC reports a failed write, which has no status of the server's, as an internal error.
            broken = failed.code() is grpc.StatusCode.INTERNAL and failed.details() == _FAILED_WRITE
            error = EngineStoppedError("the connection to the server broke") if broken else call_error(failed)
            limit = size_limit(failed)
        except asyncio.CancelledError:  # by `close`: gRPC raises it in the reader, though the task was not cancelled
            pass
        except Exception as fault:  # noqa: BLE001  every receiver must get the end
            error = fault
        finally:
            self._outbox.put_nowait(None)
        ended, self._sent = self._sent, {}
        for name, sent in ended.items():
            sent.receiver(Failed(error if limit is None else _oversize_error(name, sent.request, limit)))

    def _dispatch(self, response: pb.SessionResponse) -> None:
        name = response.request_id
        sent = self._sent.get(name)
        if sent is None:
            return
        receiver = sent.receiver
        match response.WhichOneof("event"):
            case "delta":
                receiver(delta(response.delta))
            case "finished":
                # A request with several outputs has several ends; the receiver counts them.
                receiver(finished(response.finished))
            case "error":
                del self._sent[name]
                receiver(Failed(error_of(response.error)))


def _submission(name: str, request: GenerateRequest) -> pb.SessionRequest:
    return pb.SessionRequest(request_id=name, submit=request_message(request))


def _oversize_error(name: str, request: GenerateRequest, limit: int) -> Exception:
    """The error of a request on a stream that a message of more than ``limit`` bytes has ended."""
    if _submission(name, request).ByteSize() > limit:
        return too_large(limit)
    return EngineStoppedError(f"the server ended the session: a message of another request has more than {limit} bytes")
