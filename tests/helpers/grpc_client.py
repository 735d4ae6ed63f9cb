"""A client of the server for its tests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

import grpc
import grpc.aio
from google.rpc.error_details_pb2 import BadRequest, RetryInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from draftline.engine.client.channel import open_channel
from draftline.v1 import engine_pb2 as pb

if TYPE_CHECKING:
    from draftline.v1.engine_pb2_grpc import InferenceServiceAsyncStub
else:
    from draftline.v1.engine_pb2_grpc import InferenceServiceStub as InferenceServiceAsyncStub

AsyncStub = InferenceServiceAsyncStub


def connect(address: str, *options: tuple[str, int]) -> grpc.aio.Channel:
    """A channel that shares no connection with others.

    A connection that failed would otherwise still fail for a later server that got the same port.
    """
    return open_channel(address, None, options)


def text_request(text: str, max_tokens: int = 4, **sampling: object) -> pb.GenerateRequest:
    return pb.GenerateRequest(text=text, sampling=pb.SamplingParams(max_tokens=max_tokens, **sampling))  # type: ignore[arg-type]


def violations(status: Status) -> dict[str, str]:
    """The field violations packed in a status."""
    [packed] = status.details
    details = BadRequest()
    assert packed.Unpack(details)
    return {violation.field: violation.description for violation in details.field_violations}


def retry_delay_s(status: Status) -> float:
    """The delay packed in a status."""
    [packed] = status.details
    details = RetryInfo()
    assert packed.Unpack(details)
    return details.retry_delay.seconds + details.retry_delay.nanos / 1e9  # type: ignore[no-any-return]


def status_of(error: grpc.RpcError) -> Status:
    """The rich status that a call failed with, which repeats the plain one."""
    status = rpc_status.from_call(error)  # type: ignore[arg-type]
    assert status is not None, f"no status details in {error}"
    assert isinstance(error, grpc.aio.AioRpcError)
    assert (status.code, status.message) == (error.code().value[0], error.details())
    return status


class SessionClient:
    """One Session stream."""

    def __init__(
        self, stub: AsyncStub, timeout: float | None = None, metadata: tuple[tuple[str, str], ...] = ()
    ) -> None:
        self.call = stub.Session(timeout=timeout, metadata=metadata)

    async def submit(self, request_id: str, request: pb.GenerateRequest) -> None:
        await self.call.write(pb.SessionRequest(request_id=request_id, submit=request))

    async def cancel(self, request_id: str) -> None:
        await self.call.write(pb.SessionRequest(request_id=request_id, cancel=pb.CancelRequest()))

    async def next(self) -> pb.SessionResponse:
        response = await self.call.read()
        assert isinstance(response, pb.SessionResponse), f"the stream ended: {await self.call.code()}"
        return response

    async def error(self, request_id: str) -> Status:
        """The next message, which must be the error of ``request_id``."""
        response = await self.next()
        assert (response.request_id, response.WhichOneof("event")) == (request_id, "error")
        return response.error

    async def rest(self) -> AsyncIterator[pb.SessionResponse]:
        """Close this side, and read to the end of the stream, which must be OK."""
        await self.call.done_writing()
        while isinstance(response := await self.call.read(), pb.SessionResponse):
            yield response
        assert await self.call.code() is grpc.StatusCode.OK, await self.call.details()

    async def outcomes(self) -> dict[tuple[str, int], Outcome]:
        """Close this side, and collect each output."""
        outcomes: dict[tuple[str, int], Outcome] = defaultdict(Outcome)
        async for response in self.rest():
            match response.WhichOneof("event"):
                case "delta":
                    outcomes[response.request_id, response.delta.index].add(response.delta)
                case "finished":
                    outcomes[response.request_id, response.finished.index].end(response.finished)
                case _:
                    raise AssertionError(f"an error: {response}")
        return outcomes


class Outcome:
    """One output as it came."""

    def __init__(self) -> None:
        self.text = ""
        self.token_ids: list[int] = []
        self.deltas = 0
        self.finished: pb.Finished | None = None

    def add(self, delta: pb.Delta) -> None:
        assert self.finished is None, "a delta after the end"
        self.text += delta.text
        self.token_ids += delta.token_ids
        self.deltas += 1

    def end(self, finished: pb.Finished) -> None:
        assert self.finished is None, "two ends"
        self.finished = finished

    @property
    def reason(self) -> str:
        assert self.finished is not None, "no end"
        return pb.FinishReason.Name(self.finished.finish_reason)


def texts(outcomes: Mapping[tuple[str, int], Outcome]) -> dict[str, str]:
    """The texts of requests with one output."""
    return {request_id: outcome.text for (request_id, _), outcome in outcomes.items()}
