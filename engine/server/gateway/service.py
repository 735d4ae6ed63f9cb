"""``vllm.grpc.engine.VllmEngine``: the server as one worker of many behind the gateway smg.

The gateway tokenizes, balances and speaks HTTP. It does not cancel a stream whose reader has gone, but calls Abort.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import time
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

from smg_grpc_proto.generated import common_pb2 as common
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm
from smg_grpc_proto.generated.vllm_engine_pb2_grpc import VllmEngineServicer

from draftline.engine.errors import FieldViolation, InvalidRequestError
from draftline.engine.outputs import Delta, Failed, Finished
from draftline.engine.protocol import Chat, EngineClient, Prompt
from draftline.engine.request.prompt import tokenize
from draftline.engine.server.gateway import convert as convert_gateway
from draftline.engine.server.gateway.convert import StreamedAnswer, WholeAnswer
from draftline.engine.server.gateway.events import CacheEvents, TokenRate
from draftline.engine.server.grpc import convert
from draftline.engine.server.grpc.handlers import Context, answers_errors, client_id_of, origin_of, reported
from draftline.engine.server.grpc.session import MAX_ID
from draftline.engine.server.grpc.stream_writer import StreamWriter
from draftline.engine.server.state import Front
from draftline.engine.server.telemetry.reports import OpenRequest
from draftline.engine.server.threads import offloaded, prompt_size, submit
from draftline.engine.streaming.mailbox import Mailbox

GATEWAY_SERVICE = vllm.DESCRIPTOR.services_by_name["VllmEngine"].full_name

MAX_ABORTS = 4096
"""Requests that one call can abort."""

_CHUNK_BYTES = 1 << 20


class _Answer(Protocol):
    def messages(self, news: Delta | Finished) -> Iterator[vllm.GenerateResponse]: ...


class GatewayService(VllmEngineServicer):  # type: ignore[misc]  # generated without types
    """The service, over whatever engine the front's gate holds."""

    def __init__(self, front: Front) -> None:
        """``front`` belongs to the event loop that serves."""
        self._front = front
        self._gate = front.gate
        self._names: dict[str, set[str]] = defaultdict(set)
        self._started = time.monotonic()
        self._last_request = 0.0
        self._rate: TokenRate | None = None

    @answers_errors
    async def HealthCheck(self, request: vllm.HealthCheckRequest, context: Context) -> vllm.HealthCheckResponse:
        """Whether requests may come: not while the model loads, nor while the server drains."""
        healthy = self._gate.is_open
        return vllm.HealthCheckResponse(healthy=healthy, message="serving" if healthy else "loading or shutting down")

    @answers_errors
    async def GetModelInfo(self, request: vllm.GetModelInfoRequest, context: Context) -> vllm.GetModelInfoResponse:
        """What is served."""
        return convert_gateway.model_info(self._gate.engine.info)

    @answers_errors
    async def GetServerInfo(self, request: vllm.GetServerInfoRequest, context: Context) -> vllm.GetServerInfoResponse:
        """The server, and what it is doing."""
        engine = self._gate.engine
        uptime = time.monotonic() - self._started
        return convert_gateway.server_info(engine.info, engine.stats(), uptime, self._last_request)

    @answers_errors
    async def GetLoads(self, request: vllm.GetLoadsRequest, context: Context) -> vllm.GetLoadsResponse:
        """The engine's load."""
        engine = self._gate.engine
        self._rate = self._rate or TokenRate(engine)
        return convert_gateway.loads(engine.info, engine.stats(), self._rate.now())

    @answers_errors
    async def GetTokenizer(self, request: common.GetTokenizerRequest, context: Context) -> None:
        """The tokenizer's files, zipped, so that the gateway tokenizes as the model does."""
        tokenizer = self._gate.engine.tokenizer
        archive = await asyncio.to_thread(lambda: _zipped(tokenizer.files()))
        digest = hashlib.sha256(archive).hexdigest()
        for at in range(0, len(archive), _CHUNK_BYTES):
            is_last = at + _CHUNK_BYTES >= len(archive)
            piece = archive[at : at + _CHUNK_BYTES]
            await context.write(common.GetTokenizerChunk(data=piece, sha256=digest if is_last else ""))

    @answers_errors
    async def SubscribeKvEvents(self, request: common.SubscribeKvEventsRequest, context: Context) -> None:
        """What the prefix cache holds and how loaded the engine is, until the gateway goes."""
        events = CacheEvents(self._gate.engine, request.start_sequence_number)
        writer = StreamWriter(context, self._front.config.stall_timeout)
        try:
            while True:
                for batch in await events.next():
                    await writer.write(batch)
        finally:
            writer.close()
            events.close()

    @answers_errors
    async def Abort(self, request: vllm.AbortRequest, context: Context) -> vllm.AbortResponse:
        """End requests of the gateway; ids that are unknown or have ended are no error."""
        if len(request.request_ids) > MAX_ABORTS:
            problem = f"has {len(request.request_ids)} entries; at most {MAX_ABORTS} fit"
            raise InvalidRequestError(FieldViolation("request_ids", problem))
        for gateway_id in request.request_ids:
            for name in self._names.get(gateway_id, ()):
                self._gate.engine.cancel(name)
        return vllm.AbortResponse()

    @answers_errors
    async def Generate(self, request: vllm.GenerateRequest, context: Context) -> None:
        """One request, streamed or as a whole."""
        name = self._front.next_name()
        self._last_request = time.time()
        caller = self._front.access.caller(context.invocation_metadata())
        origin = origin_of("VllmEngine.Generate", context, caller.name)
        client_id = request.request_id[:MAX_ID] or client_id_of(context)
        with reported(self._front.observers, origin, name, client_id, context) as open_request:
            engine = self._front.enter(caller)
            try:
                with self._known_as(request.request_id, name):
                    await self._generate(request, context, name, engine, open_request)
            finally:
                self._front.leave(caller)

    async def _generate(
        self,
        request: vllm.GenerateRequest,
        context: Context,
        name: str,
        engine: EngineClient,
        open_request: OpenRequest,
    ) -> None:
        mailbox = Mailbox(self._front.hub)
        writer = StreamWriter(context, self._front.config.stall_timeout)
        try:
            ours = convert_gateway.as_request(request)
            wanted = convert.generate_request(ours, engine.info, context.time_remaining())
            prompt = await _token_ids(wanted.prompt, engine)
            outputs = wanted.sampling.n
            answer: _Answer = (StreamedAnswer if request.stream else WholeAnswer)(prompt, outputs)
            await submit(engine, name, replace(wanted, prompt=prompt), mailbox.sink)
            await context.send_initial_metadata(())  # the gateway waits for it before it counts the request as running
            async for _, update in mailbox:
                open_request.note(update)
                if isinstance(update, Failed):
                    raise update.error
                for message in answer.messages(update):
                    await writer.write(message)
                outputs -= update.ends_output
                if not outputs:
                    return
        finally:
            writer.close()
            engine.cancel(name)  # of no effect where the request has ended

    @contextmanager
    def _known_as(self, gateway_id: str, name: str) -> Iterator[None]:
        """Let Abort find the request; a gateway that tries again may use an id twice."""
        self._names[gateway_id].add(name)
        try:
            yield
        finally:
            self._names[gateway_id].discard(name)
            if not self._names[gateway_id]:
                del self._names[gateway_id]


async def _token_ids(prompt: Prompt, engine: EngineClient) -> list[int]:
    """The prompt's token ids, which the gateway counts."""
    if isinstance(prompt, str | Chat):
        return await offloaded(prompt_size(prompt), lambda: tokenize(prompt, engine.tokenizer, engine.info))
    return list(prompt)


def _zipped(files: Mapping[str, str]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()
