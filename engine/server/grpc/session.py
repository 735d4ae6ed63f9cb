"""One ``Session`` stream: many requests under ids of the client's choice, submitted, answered and cancelled.

A reader and a writer run side by side until the client has closed its side and every request is over, or until the
stream breaks, which cancels all of its requests. The engine sees ids of its own, unique over all streams and time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count

from draftline.engine.errors import DuplicateRequestError, FieldViolation, InvalidRequestError
from draftline.engine.outputs import Delta, Failed, Finished, Update
from draftline.engine.server.grpc import convert
from draftline.engine.server.grpc.errors import code_name, to_status
from draftline.engine.server.grpc.handlers import Context, origin_of
from draftline.engine.server.grpc.stream_writer import StreamWriter
from draftline.engine.server.state import Front
from draftline.engine.server.telemetry.reports import OpenRequest
from draftline.engine.server.threads import submit
from draftline.engine.streaming.mailbox import Mailbox
from draftline.v1 import engine_pb2 as pb

MAX_ID = 256
"""Characters of a client's request id."""


@dataclass(slots=True)
class _Running:
    """A request whose end the client has not been told: what the client calls it, and its outputs still to end."""

    client_id: str
    outputs: int
    open: OpenRequest


class Session:
    """The requests of one stream."""

    def __init__(self, front: Front, context: Context) -> None:
        """A session at its beginning; ``context`` is its stream's."""
        self._front = front
        self._gate = front.gate
        self._context = context
        self._caller = front.access.caller(context.invocation_metadata())
        self._origin = origin_of("Session", context, self._caller.name)
        self._mailbox = Mailbox(front.hub)
        self._writer = StreamWriter(context, front.config.stall_timeout)
        name = front.next_name()
        self._names = (f"{name}.{serial}" for serial in count())
        self._running: dict[str, _Running] = {}
        self._name_of: dict[str, str] = {}
        self._client_has_closed = False

    async def run(self) -> None:
        """Serve the stream until it is over. Whatever ends it, no request of it goes on."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._write_all())
                tasks.create_task(self._read_all())
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            self._writer.close()
            for name, running in self._running.items():
                self._gate.engine.cancel(name)
                running.open.close("DEADLINE_EXCEEDED" if self._context.time_remaining() == 0 else "CANCELLED")
                self._front.leave(self._caller)

    async def _read_all(self) -> None:
        while isinstance(message := await self._context.read(), pb.SessionRequest):  # and not the mark of the end
            try:
                await self._handle(message)
            except Exception as error:  # noqa: BLE001  whatever it was, it concerns this request only
                await self._writer.write(pb.SessionResponse(request_id=message.request_id, error=to_status(error)))
        self._client_has_closed = True
        self._close_if_over()

    async def _handle(self, message: pb.SessionRequest) -> None:
        client_id = message.request_id
        if not client_id:
            raise InvalidRequestError(FieldViolation("request_id", "is empty"))
        if len(client_id) > MAX_ID:
            raise InvalidRequestError(
                FieldViolation("request_id", f"has {len(client_id)} characters; at most {MAX_ID} fit")
            )
        match message.WhichOneof("action"):
            case "submit":
                await self._submit(client_id, message.submit)
            case "cancel":
                if client_id in self._name_of:
                    self._gate.engine.cancel(self._name_of[client_id])
            case _:
                raise InvalidRequestError(FieldViolation("action", "is missing: set submit or cancel"))

    async def _submit(self, client_id: str, message: pb.GenerateRequest) -> None:
        name = next(self._names)
        origin = self._origin
        if message.traceparent:
            origin = replace(origin, trace={"traceparent": message.traceparent})
        open_request = OpenRequest(self._front.observers, origin, name, client_id)
        try:
            await self._start(name, client_id, message, open_request)
        except Exception as error:
            open_request.close(code_name(error))
            raise

    async def _start(self, name: str, client_id: str, message: pb.GenerateRequest, open_request: OpenRequest) -> None:
        if client_id in self._name_of:
            raise DuplicateRequestError(f"a request with id {client_id!r} is running on this stream")
        request = convert.generate_request(message, self._gate.engine.info, self._context.time_remaining())
        engine = self._front.enter(self._caller)
        # Before submitting, since an update may come, or the stream break, before submit() returns.
        self._running[name] = _Running(client_id, request.sampling.n, open_request)
        self._name_of[client_id] = name
        try:
            await submit(engine, name, request, self._mailbox.sink)
        except Exception:
            self._forget(name)
            self._front.leave(self._caller)
            raise

    async def _write_all(self) -> None:
        async for name, update in self._mailbox:
            running = self._running[name]
            running.open.note(update)
            running.outputs = 0 if update.ends_request else running.outputs - update.ends_output
            if not running.outputs:
                # Before the end is written: having read it, the client may use the id again.
                self._forget(name)
                running.open.close(code_name(update.error) if isinstance(update, Failed) else "OK")
            try:
                for message in _messages(running.client_id, update):
                    await self._writer.write(message)
            finally:
                if not running.outputs:
                    self._front.leave(self._caller)
            self._close_if_over()

    def _forget(self, name: str) -> None:
        del self._name_of[self._running.pop(name).client_id]

    def _close_if_over(self) -> None:
        if self._client_has_closed and not self._running:
            self._mailbox.close()


def _messages(client_id: str, update: Update) -> Iterator[pb.SessionResponse]:
    match update:
        case Delta():
            for delta in convert.deltas(update):
                yield pb.SessionResponse(request_id=client_id, delta=delta)
        case Finished():
            yield pb.SessionResponse(request_id=client_id, finished=convert.finished(update))
        case Failed():
            yield pb.SessionResponse(request_id=client_id, error=to_status(update.error))
