"""``draftline.v1.InferenceService``: each call translated to the engine and back, each error to its status."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from draftline.engine import convert
from draftline.engine.errors import InvalidRequestError, QueueFullError, Violation
from draftline.engine.gate import Gate
from draftline.engine.grpc_errors import to_status, unimplemented
from draftline.engine.mailbox import Hub, Mailbox
from draftline.engine.offload import offloaded, prompt_size, submit
from draftline.engine.outputs import Delta, Failed, Finished
from draftline.engine.prompt import tokenize
from draftline.engine.server_config import ServerConfig
from draftline.engine.session import Session
from draftline.engine.stream_writer import StreamWriter
from draftline.v1 import engine_pb2 as pb
from draftline.v1.engine_pb2_grpc import InferenceServiceServicer

_SESSION_RETRY_S = 5.0
"""When to try again where too many sessions are open: they last."""

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")
_Context = grpc.aio.ServicerContext[Any, Any]


def _answers_errors(
    handler: Callable[[InferenceService, _Request, _Context], Awaitable[_Response]],
) -> Callable[[InferenceService, _Request, _Context], Awaitable[_Response]]:
    """End the call with the status of whatever the handler raises."""

    @functools.wraps(handler)
    async def answering(self: InferenceService, request: _Request, context: _Context) -> _Response:
        try:
            return await handler(self, request, context)
        except grpc.aio.BaseError:
            raise  # gRPC's own, when the client has gone, or of an abort: there is nobody to answer any more
        except Exception as error:  # noqa: BLE001  every error has a status
            await _abort(context, to_status(error))

    return answering


async def _abort(context: _Context, status: Status) -> NoReturn:
    await context.abort_with_status(rpc_status.to_status(status))


class InferenceService(InferenceServiceServicer):
    """The service, over whatever engine the gate holds."""

    def __init__(self, gate: Gate, hub: Hub, config: ServerConfig) -> None:
        """``hub`` belongs to the event loop that serves."""
        self._gate = gate
        self._hub = hub
        self._config = config
        self._sessions = 0
        self._stream_names = (f"s{serial}" for serial in count())

    @_answers_errors
    async def Session(self, request_iterator: object, context: _Context) -> None:  # type: ignore[override]
        """See the proto. Reads and writes through the context, so that both can wait at once."""
        self._gate.engine  # noqa: B018  refuse the stream as a whole while the model loads
        if self._sessions >= self._config.max_sessions:
            raise QueueFullError(f"{self._sessions} sessions are open, which is the limit", _SESSION_RETRY_S)
        self._sessions += 1
        try:
            stall_timeout = self._config.stall_timeout
            await Session(self._gate, self._hub, next(self._stream_names), context, stall_timeout).run()
        finally:
            self._sessions -= 1

    @_answers_errors
    async def Generate(self, request: pb.GenerateRequest, context: _Context) -> None:  # type: ignore[override]
        """See the proto."""
        engine = self._gate.enter()
        name = next(self._stream_names)
        mailbox = Mailbox(self._hub)
        writer = StreamWriter(context, self._config.stall_timeout)
        try:
            wanted = convert.generate_request(request, context.time_remaining())
            await submit(engine, name, wanted, mailbox.sink)
            outputs = wanted.sampling.n
            async for _, update in mailbox:
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
            self._gate.leave()

    @_answers_errors
    async def Tokenize(self, request: pb.TokenizeRequest, context: _Context) -> pb.TokenizeResponse:
        """See the proto."""
        engine = self._gate.engine
        match request.WhichOneof("prompt"):
            case "text":
                ids = await offloaded(len(request.text), lambda: tokenize(request.text, engine.tokenizer, engine.info))
            case "chat":
                chat = convert.chat(request.chat)
                ids = await offloaded(prompt_size(chat), lambda: tokenize(chat, engine.tokenizer, engine.info))
            case _:
                raise InvalidRequestError(Violation("prompt", "is missing: set text or chat"))
        return pb.TokenizeResponse(token_ids=ids)

    @_answers_errors
    async def Detokenize(self, request: pb.DetokenizeRequest, context: _Context) -> pb.DetokenizeResponse:
        """See the proto."""
        engine = self._gate.engine
        vocab_size = engine.info.config.vocab_size
        ids = list(request.token_ids)
        for place, token in enumerate(ids):
            if token >= vocab_size:
                problem = f"{token} is not a token id of this model (0 to {vocab_size - 1})"
                raise InvalidRequestError(Violation(f"token_ids[{place}]", problem))
        return pb.DetokenizeResponse(
            text=await offloaded(len(ids), lambda: engine.tokenizer.decode(ids, skip_special=False))
        )

    @_answers_errors
    async def CheckConstraint(
        self, request: pb.CheckConstraintRequest, context: _Context
    ) -> pb.CheckConstraintResponse:
        """See the proto."""
        convert.constraint_params(request.constraint)
        await _abort(context, unimplemented("this server enforces no constraints"))

    @_answers_errors
    async def GetModel(self, request: pb.GetModelRequest, context: _Context) -> pb.GetModelResponse:
        """See the proto."""
        return convert.model_response(self._gate.engine.info)
