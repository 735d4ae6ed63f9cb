"""``draftline.v1.InferenceService``: translates each call to the engine and back, and each error to its status."""

from __future__ import annotations

import asyncio

from typing_extensions import override

from draftline.engine.chat.messages import Chat
from draftline.engine.errors import DraftlineError, FieldViolation, InvalidRequestError, QueueFullError
from draftline.engine.outputs import Delta, Finished
from draftline.engine.request.constraints import compile_whole
from draftline.engine.request.request import out_of_range, utf8_size
from draftline.engine.server.grpc import convert
from draftline.engine.server.grpc.handlers import Context, GrpcCall, peer_of, with_error_status, with_report
from draftline.engine.server.grpc.limits import check_constraint, check_detokenize, check_tokenize
from draftline.engine.server.grpc.session import Session
from draftline.engine.server.grpc.stream_writer import StreamWriter
from draftline.engine.server.in_flight import InFlightRequest, report_refusal
from draftline.engine.server.limits import MAX_DETOKENIZED, refuse
from draftline.engine.server.state import ServerState
from draftline.engine.server.tokenizer_pool import LONG
from draftline.engine.streaming.mailbox import Mailbox
from draftline.engine.tools.plan import check_chat
from draftline.v1 import engine_pb2 as pb
from draftline.v1.engine_pb2_grpc import InferenceServiceServicer

_SESSION_RETRY_S = 5.0
"""Retry delay in seconds when too many sessions are open. Sessions last long."""


class InferenceService(InferenceServiceServicer):
    """The service.

    Attributes:
        state: of the server, whose engine it serves.
    """

    def __init__(self, state: ServerState) -> None:
        """A service without sessions."""
        self.state = state

    @override
    @with_error_status
    async def Session(self, request_iterator: object, context: Context) -> None:  # type: ignore[override]
        # Reads and writes go through the context, so that both can wait at once.
        try:
            self._check_session()
        except DraftlineError as error:
            report_refusal(self.state, GrpcCall.of(self.state, "Session", context), error)
            raise
        self.state.sessions += 1
        try:
            await Session(self.state, context).run()
        finally:
            self.state.sessions -= 1

    @override
    @with_error_status
    async def Generate(self, request: pb.GenerateRequest, context: Context) -> None:  # type: ignore[override]
        request_id = self.state.next_id()
        context.set_trailing_metadata((("draftline-request-id", request_id),))
        call = GrpcCall.of(self.state, "Generate", context)
        mailbox = Mailbox(self.state.hub)
        with (
            InFlightRequest(self.state, call, request_id, call.client_id, mailbox) as in_flight,
            StreamWriter(context, self.state.config.stall_timeout) as writer,
        ):
            engine = in_flight.admit()
            await in_flight.submit(convert.generate_request(request, engine.info, call.time_left()))
            async for update in in_flight.updates():
                match update:
                    case Delta():
                        for delta in convert.deltas(update):
                            await writer.write(pb.GenerateResponse(delta=delta))
                    case Finished():
                        await writer.write(pb.GenerateResponse(finished=convert.finished(update)))

    @override
    @with_error_status
    @with_report
    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        engine = self.state.engine
        check_tokenize(request, engine.info)
        prompt: str | Chat
        match request.WhichOneof("prompt"):
            case "text":
                prompt = request.text
            case "chat":
                prompt = convert.chat(request.chat)
                check_chat(prompt, engine.info)
            case _:
                raise InvalidRequestError(FieldViolation("prompt", "is missing: set text or chat"))
        ids = await self.state.tokenizers.token_ids(prompt, self._caller(context))
        return pb.TokenizeResponse(token_ids=ids)

    @override
    @with_error_status
    @with_report
    async def Detokenize(self, request: pb.DetokenizeRequest, context: Context) -> pb.DetokenizeResponse:
        engine = self.state.engine
        check_detokenize(request)

        def decode() -> str:
            ids = list(request.token_ids)
            refuse(*out_of_range("token_ids", ids, engine.info))
            text = engine.tokenizer.decode(ids, skip_special=False)
            if (size := utf8_size(text)) > MAX_DETOKENIZED:
                problem = (
                    f"have a text of {size} bytes; at most {MAX_DETOKENIZED} fit an answer, so ask for parts of it"
                )
                raise InvalidRequestError(FieldViolation("token_ids", problem))
            return text

        is_long = len(request.token_ids) >= LONG
        return pb.DetokenizeResponse(text=await asyncio.to_thread(decode) if is_long else decode())

    @override
    @with_error_status
    @with_report
    async def CheckConstraint(self, request: pb.CheckConstraintRequest, context: Context) -> pb.CheckConstraintResponse:
        check_constraint(request.constraint)
        constraint = convert.constraint_params(request.constraint)
        report = await compile_whole(self.state.engine.compiler, constraint, self._caller(context))
        return convert.constraint_response(report)

    @override
    @with_error_status
    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:
        return convert.model_response(self.state.engine.info)

    def _check_session(self) -> None:
        """Refuse a stream as a whole, while the model loads or where too many are open."""
        self.state.engine  # noqa: B018  raises while the model loads
        if self.state.sessions >= self.state.config.max_sessions:
            raise QueueFullError(f"{self.state.sessions} sessions are open, which is the limit", _SESSION_RETRY_S)

    def _caller(self, context: Context) -> str:
        """Who calls: callers take turns at long work."""
        return self.state.access.caller(context.invocation_metadata()).identity(peer_of(context))
