"""One ``Session`` stream: requests under ids that the client chooses are submitted, answered and cancelled.

A reader and a writer run concurrently until the client has closed its side and every request has ended. Each submission
has a task of its own: it may wait for a constraint to compile, which must not hold up the other requests. If the stream
breaks, all of its requests are cancelled. The engine gets ids of the server's, unique over all streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count

from google.protobuf.message import DecodeError

from draftline.engine.errors import DuplicateRequestError, FieldViolation, InvalidRequestError
from draftline.engine.outputs import Delta, Failed, Finished, Update
from draftline.engine.protocol import GenerateRequest
from draftline.engine.server.grpc import convert
from draftline.engine.server.grpc.errors import to_status
from draftline.engine.server.grpc.handlers import Context, GrpcCall
from draftline.engine.server.grpc.stream_writer import StreamWriter
from draftline.engine.server.in_flight import InFlightRequest, report_refusal
from draftline.engine.server.limits import MAX_REQUEST_ID, length_violations
from draftline.engine.server.state import ServerState
from draftline.engine.streaming.mailbox import Mailbox
from draftline.v1 import engine_pb2 as pb

_MAX_SUBMITTING = 32
"""Submissions of one stream at once. Further messages wait: a stream alone must not fill the queue of constraints."""


class Session:
    """The requests of one stream."""

    def __init__(self, state: ServerState, context: Context) -> None:
        """The session of the stream that ``context`` belongs to.

        Raises:
            UnauthenticatedError: the call's token is unknown.
        """
        self._state = state
        self._context = context
        self._call = GrpcCall.of(state, "Session", context)
        self._mailbox = Mailbox(state.hub)
        self._writer = StreamWriter(context, state.config.stall_timeout)
        session_id = state.next_id()
        self._request_ids = (f"{session_id}.{serial}" for serial in count())
        self._in_flight: dict[str, InFlightRequest] = {}  # by the server's id
        self._request_id_of: dict[str, str] = {}  # by the client's id
        self._submitting = asyncio.Semaphore(_MAX_SUBMITTING)
        self._client_has_closed = False

    async def run(self) -> None:
        """Serve the stream until it ends. No request of it continues afterwards."""
        try:
            await self._writer.begin()  # clients wait for it
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._write_all())
                tasks.create_task(self._read_all(tasks))
        except ExceptionGroup as group:
            # A message that cannot be decoded is the reason, whatever failed with it.
            raise next((e for e in group.exceptions if isinstance(e, DecodeError)), group.exceptions[0]) from None
        finally:
            self._writer.close()
            for request in self._in_flight.values():
                request.close(asyncio.CancelledError())

    async def _read_all(self, tasks: asyncio.TaskGroup) -> None:
        while isinstance(
            message := await self._context.read(), pb.SessionRequest
        ):  # gRPC marks the end by another type
            try:
                wanted = self._handle(message)
            except Exception as error:  # noqa: BLE001  the error concerns this request only
                await self._refuse(message.request_id, error)
                continue
            if wanted is not None:
                await self._submitting.acquire()
                tasks.create_task(self._submit(*wanted))
        self._client_has_closed = True
        self._close_if_over()

    def _handle(self, message: pb.SessionRequest) -> tuple[str, GenerateRequest] | None:
        """Admit the request of a message; None if it cancels one.

        Returns:
            What is to be submitted, under which id of the server's.
        """
        client_id = message.request_id
        if wrong := list(_violations(message)):
            error = InvalidRequestError(*wrong)
            report_refusal(self._state, self._call, error, client_id[:MAX_REQUEST_ID])
            raise error
        if message.HasField("submit"):
            return self._admit(client_id, message.submit)
        if client_id in self._request_id_of:
            self._in_flight[self._request_id_of[client_id]].cancel()
        return None

    def _admit(self, client_id: str, message: pb.GenerateRequest) -> tuple[str, GenerateRequest]:
        request_id = next(self._request_ids)
        call = self._call.with_trace(message.traceparent) if message.traceparent else self._call
        request = InFlightRequest(self._state, call, request_id, client_id, self._mailbox)
        try:
            if client_id in self._request_id_of:
                raise DuplicateRequestError(f"a request with id {client_id!r} is running on this stream")
            engine = request.admit()
            wanted = convert.generate_request(message, engine.info, call.time_left())
        except Exception as error:
            request.close(error)
            raise
        self._in_flight[request_id] = request
        self._request_id_of[client_id] = request_id
        return request_id, wanted

    async def _submit(self, request_id: str, wanted: GenerateRequest) -> None:
        request = self._in_flight[request_id]
        try:
            await request.submit(wanted)
        except Exception as error:  # noqa: BLE001  the error concerns this request only
            self._forget(request_id)
            request.close(error)
            await self._refuse(request.client_id, error)
            self._close_if_over()
        finally:
            self._submitting.release()

    async def _refuse(self, client_id: str, error: Exception) -> None:
        await self._writer.write(pb.SessionResponse(request_id=client_id, error=to_status(error)))

    async def _write_all(self) -> None:
        async for request_id, update in self._mailbox:
            request = self._in_flight.get(request_id)
            if request is None:
                continue  # a drain has cut the request off; the engine makes updates until it has stopped it
            if not request.note(update):
                await self._write(request.client_id, update)
                continue
            # Before the last update is written: once it is read, the client may use the id again.
            self._forget(request_id)
            with request:
                await self._write(request.client_id, update)
                request.close(update.error if isinstance(update, Failed) else None)
            self._close_if_over()

    async def _write(self, client_id: str, update: Update) -> None:
        for message in _messages(client_id, update):
            await self._writer.write(message)

    def _forget(self, request_id: str) -> None:
        del self._request_id_of[self._in_flight.pop(request_id).client_id]

    def _close_if_over(self) -> None:
        if self._client_has_closed and not self._in_flight:
            self._mailbox.close()


def _violations(message: pb.SessionRequest) -> Iterator[FieldViolation]:
    """What is wrong with a message itself."""
    if not message.request_id:
        yield FieldViolation("request_id", "is empty")
    yield from length_violations(message.request_id, MAX_REQUEST_ID, "request_id", "characters")
    if message.WhichOneof("action") is None:
        yield FieldViolation("action", "is missing: set submit or cancel")


def _messages(client_id: str, update: Update) -> Iterator[pb.SessionResponse]:
    match update:
        case Delta():
            for delta in convert.deltas(update):
                yield pb.SessionResponse(request_id=client_id, delta=delta)
        case Finished():
            yield pb.SessionResponse(request_id=client_id, finished=convert.finished(update))
        case Failed():
            yield pb.SessionResponse(request_id=client_id, error=to_status(update.error))
