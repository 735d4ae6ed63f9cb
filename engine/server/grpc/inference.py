"""``draftline.v1.InferenceService``: each call translated to the engine and back, each error to its status."""

from __future__ import annotations

from draftline.engine.errors import FieldViolation, InvalidRequestError, QueueFullError
from draftline.engine.outputs import Delta, Failed, Finished
from draftline.engine.protocol import EngineClient
from draftline.engine.request.constraints import compiled
from draftline.engine.request.prompt import tokenize
from draftline.engine.server.grpc import convert
from draftline.engine.server.grpc.errors import unimplemented
from draftline.engine.server.grpc.handlers import Context, abort, answers_errors, client_id_of, origin_of, reported
from draftline.engine.server.grpc.session import Session
from draftline.engine.server.grpc.stream_writer import StreamWriter
from draftline.engine.server.limits import check_constraint, check_detokenize, check_tokenize
from draftline.engine.server.state import Front
from draftline.engine.server.telemetry.reports import OpenRequest
from draftline.engine.server.threads import offloaded, prompt_size, submit
from draftline.engine.streaming.mailbox import Mailbox
from draftline.v1 import engine_pb2 as pb
from draftline.v1.engine_pb2_grpc import InferenceServiceServicer

_SESSION_RETRY_S = 5.0
"""When to try again where too many sessions are open: they last."""


class InferenceService(InferenceServiceServicer):
    """The service, over whatever engine the gate holds."""

    def __init__(self, front: Front) -> None:
        """``front`` belongs to the event loop that serves."""
        self._front = front
        self._gate = front.gate
        self._sessions = 0

    @answers_errors
    async def Session(self, request_iterator: object, context: Context) -> None:  # type: ignore[override]
        """See the proto. Reads and writes through the context, so that both can wait at once."""
        self._gate.engine  # noqa: B018  refuse the stream as a whole while the model loads
        if self._sessions >= self._front.config.max_sessions:
            raise QueueFullError(f"{self._sessions} sessions are open, which is the limit", _SESSION_RETRY_S)
        self._sessions += 1
        try:
            await Session(self._front, context).run()
        finally:
            self._sessions -= 1

    @answers_errors
    async def Generate(self, request: pb.GenerateRequest, context: Context) -> None:  # type: ignore[override]
        """See the proto."""
        name = self._front.next_name()
        context.set_trailing_metadata((("draftline-request-id", name),))
        caller = self._front.access.caller(context.invocation_metadata())
        origin = origin_of("Generate", context, caller.name)
        with reported(self._front.observers, origin, name, client_id_of(context), context) as open_request:
            engine = self._front.enter(caller)
            try:
                await self._generate(request, context, name, engine, open_request)
            finally:
                self._front.leave(caller)

    async def _generate(
        self,
        request: pb.GenerateRequest,
        context: Context,
        name: str,
        engine: EngineClient,
        open_request: OpenRequest,
    ) -> None:
        mailbox = Mailbox(self._front.hub)
        writer = StreamWriter(context, self._front.config.stall_timeout)
        try:
            wanted = convert.generate_request(request, engine.info, context.time_remaining())
            await submit(engine, name, wanted, mailbox.sink)
            outputs = wanted.sampling.n
            async for _, update in mailbox:
                open_request.note(update)
                match update:
                    case Delta():
                        for delta in convert.deltas(update):
                            await writer.write(pb.GenerateResponse(delta=delta))
                    case Finished():
                        await writer.write(pb.GenerateResponse(finished=convert.finished(update)))
                    case Failed():
                        raise update.error
                outputs -= update.ends_output
                if not outputs:
                    return
        finally:
            writer.close()
            engine.cancel(name)  # of no effect where the request has ended

    @answers_errors
    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        """See the proto."""
        engine = self._gate.engine
        check_tokenize(request, engine.info)
        match request.WhichOneof("prompt"):
            case "text":
                ids = await offloaded(len(request.text), lambda: tokenize(request.text, engine.tokenizer, engine.info))
            case "chat":
                chat = convert.chat(request.chat)
                ids = await offloaded(prompt_size(chat), lambda: tokenize(chat, engine.tokenizer, engine.info))
            case _:
                raise InvalidRequestError(FieldViolation("prompt", "is missing: set text or chat"))
        return pb.TokenizeResponse(token_ids=ids)

    @answers_errors
    async def Detokenize(self, request: pb.DetokenizeRequest, context: Context) -> pb.DetokenizeResponse:
        """See the proto."""
        engine = self._gate.engine
        check_detokenize(request)
        vocab_size = engine.info.config.vocab_size
        ids = list(request.token_ids)
        for place, token in enumerate(ids):
            if token >= vocab_size:
                problem = f"{token} is not a token id of this model (0 to {vocab_size - 1})"
                raise InvalidRequestError(FieldViolation(f"token_ids[{place}]", problem))
        return pb.DetokenizeResponse(
            text=await offloaded(len(ids), lambda: engine.tokenizer.decode(ids, skip_special=False))
        )

    @answers_errors
    async def CheckConstraint(self, request: pb.CheckConstraintRequest, context: Context) -> pb.CheckConstraintResponse:
        """See the proto."""
        check_constraint(request.constraint)
        asked = convert.constraint_params(request.constraint)
        compiler = self._gate.engine.compiler
        if compiler is None:
            await abort(context, unimplemented("this server enforces no constraints"))
        return convert.constraint_response((await compiled(compiler, asked)).report)

    @answers_errors
    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:
        """See the proto."""
        return convert.model_response(self._gate.engine.info)
