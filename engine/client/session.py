"""``ClientSession``: the client's end of one ``Session`` stream, with what was submitted over it and how it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import count
from typing import Any

import grpc.aio

from draftline.engine.client.convert import request_message, update
from draftline.engine.client.errors import call_error, error_of
from draftline.engine.errors import EngineStoppedError
from draftline.engine.outputs import Failed, Update
from draftline.engine.protocol import GenerateRequest
from draftline.v1 import engine_pb2 as pb

Receiver = Callable[[Update], None]
"""Takes one request's updates, on the event loop. The last is a Finished or a Failed."""


class ClientSession:
    """One stream. Once it is over, so is everything that was submitted over it."""

    def __init__(self, open_call: Callable[[AsyncIterator[pb.SessionRequest]], Any]) -> None:
        """Open the stream.

        Args:
            open_call: the stub's ``Session``, with its metadata.
        """
        self._outbox: asyncio.Queue[pb.SessionRequest | None] = asyncio.Queue()
        self._receivers: dict[str, Receiver] = {}
        self._names = (f"r{serial}" for serial in count())
        self._call = open_call(self._requests())
        self._reading = asyncio.create_task(self._read())

    @property
    def is_over(self) -> bool:
        """Whether nothing can be submitted any more."""
        return self._reading.done()

    def submit(self, request: GenerateRequest, receiver: Receiver) -> str:
        """Send a request; returns the name to cancel it by."""
        name = next(self._names)
        self._receivers[name] = receiver
        self._outbox.put_nowait(pb.SessionRequest(request_id=name, submit=request_message(request)))
        return name

    def cancel(self, name: str) -> None:
        """Ask for a request's end. Of no effect where it has ended."""
        if name in self._receivers:
            self._outbox.put_nowait(pb.SessionRequest(request_id=name, cancel=pb.CancelRequest()))

    def forget(self, name: str) -> None:
        """Cancel a request whose receiver is gone."""
        self.cancel(name)
        if name in self._receivers:
            self._receivers[name] = lambda _: None

    async def close(self) -> None:
        """Break the stream, which cancels all of its requests, and wait until it is over."""
        self._call.cancel()
        await asyncio.wait({self._reading})

    async def _requests(self) -> AsyncIterator[pb.SessionRequest]:
        while (message := await self._outbox.get()) is not None:
            yield message

    async def _read(self) -> None:
        error: Exception = EngineStoppedError("the server ended the session")
        try:
            async for response in self._call:
                self._take(response)
        except grpc.aio.AioRpcError as failed:
            error = call_error(failed)
        except asyncio.CancelledError:  # by `close`: gRPC tells the reader so, though its task was not cancelled
            pass
        except Exception as fault:  # noqa: BLE001  whatever it was, those who wait must hear of it
            error = fault
        finally:
            self._outbox.put_nowait(None)
        receivers, self._receivers = self._receivers, {}
        for receiver in receivers.values():
            receiver(Failed(error))

    def _take(self, response: pb.SessionResponse) -> None:
        name = response.request_id
        receiver = self._receivers.get(name)
        if receiver is None:
            return
        match response.WhichOneof("event"):
            case "delta":
                receiver(update(pb.GenerateResponse(delta=response.delta)))
            case "finished":
                # A request with several outputs has several ends; its receiver knows which is the last.
                receiver(update(pb.GenerateResponse(finished=response.finished)))
            case "error":
                del self._receivers[name]
                receiver(Failed(error_of(response.error)))

    def over(self, name: str) -> None:
        """The receiver has had the last of a request's ends."""
        self._receivers.pop(name, None)
