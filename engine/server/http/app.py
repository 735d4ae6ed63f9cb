"""The endpoints of the HTTP face, each with its body, its requests to the engine and its answer."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter
from pydantic_core import to_json
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from draftline.engine.errors import QueueFullError
from draftline.engine.protocol import EngineClient
from draftline.engine.server.http.body import Generating, read
from draftline.engine.server.http.call import REQUEST_ID, HttpCall
from draftline.engine.server.http.endpoints import chat, completions, plain, responses, tokens
from draftline.engine.server.http.endpoints.about import About, served_model
from draftline.engine.server.http.errors import HttpError
from draftline.engine.server.http.generation import Generation, PromptRequest, until_disconnect
from draftline.engine.server.http.guard import Guard
from draftline.engine.server.http.openapi import Described, describe
from draftline.engine.server.http.stream import Answer, EventStream
from draftline.engine.server.in_flight import counted
from draftline.engine.server.state import ServerState


@dataclass(frozen=True, slots=True)
class Endpoint(Described):
    """An endpoint that generates.

    Attributes:
        requests: makes the requests of a body, one for each prompt, with a limit of tokens where the body sets none.
        answer: begins the answer to a body.
        default_max_tokens: where the body sets none; None for as many as the context has room for.
        full_status: the status when there is no room for the request.
    """

    body: type[Generating]
    requests: Callable[[Any, EngineClient, int], list[PromptRequest]]
    answer: Callable[[Any, Generation, EngineClient, str], Answer]
    default_max_tokens: int | None = None
    full_status: int = 429


ENDPOINTS = (
    Endpoint(
        "/v1/completions",
        "Complete prompts.",
        completions.CompletionBody,
        completions.prompt_requests,
        completions.CompletionAnswer,
        completions.DEFAULT_MAX_TOKENS,
    ),
    Endpoint("/v1/chat/completions", "Answer a chat.", chat.ChatBody, chat.prompt_requests, chat.ChatAnswer),
    Endpoint(
        "/v1/responses", "Answer an input.", responses.ResponseBody, responses.prompt_requests, responses.ResponseAnswer
    ),
    Endpoint(
        "/generate",
        "Complete a prompt, in the form of a plain server.",
        plain.PlainBody,
        plain.prompt_requests,
        plain.PlainAnswer,
        plain.DEFAULT_MAX_TOKENS,
        full_status=503,
    ),
)
"""The endpoints that generate."""


@dataclass(frozen=True, slots=True)
class TokenEndpoint(Described):
    """An endpoint of the tokenizer, which answers at once."""

    answer: Callable[[Any, ServerState, HttpCall], Awaitable[dict[str, Any]]]


TOKEN_ENDPOINTS = (
    TokenEndpoint("/tokenize", "The tokens of a text or a chat.", tokens.TokenizeBody, tokens.tokenize),
    TokenEndpoint("/detokenize", "The text of tokens.", tokens.DetokenizeBody, tokens.detokenize),
)


def application(state: ServerState, registry: CollectorRegistry, refusals: Counter) -> ASGIApp:
    """The whole application of a server.

    Args:
        state: the state of the server.
        registry: collects the metrics for Prometheus.
        refusals: counts the requests that are refused for their token, by code.
    """
    about = About(state, registry)
    description = _description()

    async def openapi(request: Request) -> Response:
        return Response(description, media_type="application/json")

    routes = [
        Route("/", about.root),
        Route("/live", about.live),
        Route("/health", about.ready),
        Route("/ready", about.ready),
        Route("/version", about.version),
        Route("/metrics", about.metrics),
        Route("/openapi.json", openapi),
        Route("/v1/models", about.models),
        Route("/v1/models/{name:path}", about.model),
        *(Route(each.path, _generating(state, each), methods=["POST"]) for each in ENDPOINTS),
        *(Route(each.path, _tokenizing(state, each), methods=["POST"]) for each in TOKEN_ENDPOINTS),
    ]
    app: ASGIApp = Guard(
        Router(routes, redirect_slashes=False),  # without Starlette's own answers to errors: the guard's has the form
        state.config,
        state.access,
        refusals,
    )
    if state.config.http_allowed_origins:
        # Around the guard: a preflight has no token.
        origins = list(state.config.http_allowed_origins)
        app = CORSMiddleware(
            app,
            allow_origins=origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=[REQUEST_ID, "retry-after"],  # the headers of ours that clients in browsers read
        )
    return app


_Handler = Callable[[Request], Awaitable[Response]]


@functools.cache
def _description() -> bytes:
    """The OpenAPI document, the same of every server: it takes a twentieth of a second."""
    return to_json(describe((*ENDPOINTS, *TOKEN_ENDPOINTS)))


def _generating(state: ServerState, endpoint: Endpoint) -> _Handler:
    """The handler of an endpoint that generates."""

    async def handle(request: Request) -> Response:
        call = HttpCall.of(request)
        generation = Generation(state, call)
        try:
            body = await read(request, endpoint.body, state.config)
            engine = state.engine
            model = served_model(body.model, state.config, engine.info)
            limits = (endpoint.default_max_tokens or engine.info.max_model_len, call.caller.limits.max_tokens)
            requests = endpoint.requests(body, engine, min(limit for limit in limits if limit is not None))
            answer = endpoint.answer(body, generation, engine, model)
            await until_disconnect(request.receive, generation.start(requests))
            if body.stream:  # the stream closes the generation
                await until_disconnect(request.receive, generation.begun())
                return EventStream(generation, answer, state.config.stall_timeout)
            outputs = await until_disconnect(request.receive, generation.outputs())
            return _json(answer.whole(outputs))
        except QueueFullError as error:
            generation.close(error)
            if endpoint.full_status != 429:
                raise HttpError(
                    endpoint.full_status, str(error), report="RESOURCE_EXHAUSTED", retry_after_s=error.retry_after_s
                ) from error
            raise
        except BaseException as error:
            generation.close(error)
            raise

    return handle


def _tokenizing(state: ServerState, endpoint: TokenEndpoint) -> _Handler:
    """The handler of an endpoint of the tokenizer."""

    async def handle(request: Request) -> Response:
        call = HttpCall.of(request)
        with counted(state, call, call.client_id):
            body = await read(request, endpoint.body, state.config)
            served_model(getattr(body, "model", None), state.config, state.engine.info)
            return _json(await endpoint.answer(body, state, call))

    return handle


def _json(content: dict[str, Any]) -> Response:
    return Response(to_json(content), media_type="application/json")
