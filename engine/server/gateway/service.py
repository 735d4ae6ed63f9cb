"""``vllm.grpc.engine.VllmEngine``: the server as one of the workers behind the gateway smg.

The gateway tokenizes, balances load and speaks HTTP. When a client disconnects, it calls Abort instead of cancelling
the stream.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import time
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial

from smg_grpc_proto.generated import common_pb2 as common
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm
from smg_grpc_proto.generated.vllm_engine_pb2_grpc import VllmEngineServicer
from typing_extensions import override

from draftline.engine.chat.messages import Chat
from draftline.engine.protocol import GenerateRequest
from draftline.engine.server.gateway.convert import (
    WholeResponse,
    as_request,
    loads,
    model_info,
    server_info,
    streamed,
)
from draftline.engine.server.gateway.events import CacheEvents, TokenRate
from draftline.engine.server.grpc.convert import generate_request
from draftline.engine.server.grpc.handlers import Context, GrpcCall, with_error_status
from draftline.engine.server.grpc.stream_writer import StreamWriter
from draftline.engine.server.in_flight import InFlightRequest
from draftline.engine.server.limits import MAX_ENTRIES, MAX_REQUEST_ID, length_violations, refuse
from draftline.engine.server.state import ServerState
from draftline.engine.streaming.mailbox import Mailbox

GATEWAY_SERVICE: str = vllm.DESCRIPTOR.services_by_name["VllmEngine"].full_name

_CHUNK_BYTES = 1 << 20


class GatewayService(VllmEngineServicer):  # type: ignore[misc]  # generated without types
    """The service. It serves the engine of the server's state."""

    def __init__(self, state: ServerState) -> None:
        """A service without requests."""
        self._state = state
        self._request_ids: dict[str, set[str]] = defaultdict(set)  # by the gateway's id
        self._started = time.monotonic()
        self._last_request = 0.0
        self._rate: TokenRate | None = None

    @override
    @with_error_status
    async def HealthCheck(self, request: vllm.HealthCheckRequest, context: Context) -> vllm.HealthCheckResponse:
        status = self._state.status
        return vllm.HealthCheckResponse(healthy=status == "ready", message=status)

    @override
    @with_error_status
    async def GetModelInfo(self, request: vllm.GetModelInfoRequest, context: Context) -> vllm.GetModelInfoResponse:
        return model_info(self._state.engine.info)

    @override
    @with_error_status
    async def GetServerInfo(self, request: vllm.GetServerInfoRequest, context: Context) -> vllm.GetServerInfoResponse:
        engine = self._state.engine
        uptime = time.monotonic() - self._started
        return server_info(engine.info, engine.stats(), uptime, self._last_request)

    @override
    @with_error_status
    async def GetLoads(self, request: vllm.GetLoadsRequest, context: Context) -> vllm.GetLoadsResponse:
        engine = self._state.engine
        self._rate = self._rate or TokenRate(engine)
        return loads(engine.info, engine.stats(), self._rate.now())

    @override
    @with_error_status
    async def GetTokenizer(self, request: common.GetTokenizerRequest, context: Context) -> None:
        # The tokenizer's files, zipped, so that the gateway tokenizes as the model does.
        tokenizer = self._state.engine.tokenizer
        archive = await asyncio.to_thread(lambda: _zipped(tokenizer.files()))
        digest = hashlib.sha256(archive).hexdigest()
        for start in range(0, len(archive), _CHUNK_BYTES):
            is_last = start + _CHUNK_BYTES >= len(archive)
            chunk = archive[start : start + _CHUNK_BYTES]
            await context.write(common.GetTokenizerChunk(data=chunk, sha256=digest if is_last else ""))

    @override
    @with_error_status
    async def SubscribeKvEvents(self, request: common.SubscribeKvEventsRequest, context: Context) -> None:
        # Endless: the call ends when the gateway cancels it.
        with (
            closing(CacheEvents(self._state.engine, request.start_sequence_number)) as events,
            StreamWriter(context, self._state.config.stall_timeout) as writer,
        ):
            while True:
                for batch in await events.next():
                    await writer.write(batch)

    @override
    @with_error_status
    async def Abort(self, request: vllm.AbortRequest, context: Context) -> vllm.AbortResponse:
        refuse(*length_violations(request.request_ids, MAX_ENTRIES, "request_ids", "entries"))
        for gateway_id in request.request_ids:
            for request_id in self._request_ids.get(gateway_id, ()):
                self._state.cancel(request_id)
        return vllm.AbortResponse()

    @override
    @with_error_status
    async def Generate(self, request: vllm.GenerateRequest, context: Context) -> None:
        request_id = self._state.next_id()
        self._last_request = time.time()
        call = GrpcCall.of(self._state, "VllmEngine.Generate", context)
        client_id = request.request_id[:MAX_REQUEST_ID] or call.client_id
        mailbox = Mailbox(self._state.hub)
        with (
            InFlightRequest(self._state, call, request_id, client_id, mailbox) as in_flight,
            self._known_as(request.request_id, request_id),
            StreamWriter(context, self._state.config.stall_timeout) as writer,
        ):
            engine = in_flight.admit()
            wanted = generate_request(as_request(request), engine.info, call.time_left())
            submitted = await in_flight.submit(wanted, self._with_ids)
            prompt = () if isinstance(submitted.prompt, str | Chat) else submitted.prompt  # ended before it had its ids
            messages = (
                partial(streamed, prompt) if request.stream else WholeResponse(prompt, wanted.sampling.n).messages
            )
            await writer.begin()  # the gateway counts the request as running from then on
            async for update in in_flight.updates():
                for message in messages(update):
                    await writer.write(message)

    async def _with_ids(self, request: GenerateRequest) -> GenerateRequest:
        """The request with its prompt's token ids, which the gateway counts."""
        if isinstance(request.prompt, str | Chat):
            return replace(request, prompt=await self._state.tokenizers.token_ids(request.prompt, request.caller))
        return request

    @contextmanager
    def _known_as(self, gateway_id: str, request_id: str) -> Iterator[None]:
        """Let Abort find the request. A gateway that retries may use an id twice."""
        self._request_ids[gateway_id].add(request_id)
        try:
            yield
        finally:
            self._request_ids[gateway_id].discard(request_id)
            if not self._request_ids[gateway_id]:
                del self._request_ids[gateway_id]


def _zipped(files: Mapping[str, str]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()
