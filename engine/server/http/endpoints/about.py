"""The endpoints that describe the server: its health, version, model and metrics."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from draftline import __version__
from draftline.engine.protocol import EngineInfo
from draftline.engine.server.config import ServerConfig
from draftline.engine.server.http.errors import HttpError
from draftline.engine.server.state import ServerState


def model_names(config: ServerConfig, info: EngineInfo) -> tuple[str, ...]:
    """The names under which the model is served; answers have the first."""
    return config.served_model_name or (info.model,)


def served_model(name: str | None, config: ServerConfig, info: EngineInfo) -> str:
    """The name of the model in the answer to a request for ``name``.

    Raises:
        HttpError: this server does not serve it.
    """
    names = model_names(config, info)
    if name is not None and name not in names:
        message = f"the model {name[:200]!r} does not exist; this server serves {', '.join(names)}"
        raise HttpError(404, message, code="model_not_found", param="model", report="NOT_FOUND")
    return name or names[0]


class About:
    """The endpoints of one server."""

    def __init__(self, state: ServerState, registry: CollectorRegistry) -> None:
        """``registry`` collects the metrics, each with the model as a label."""
        self._state = state
        self._registry = registry
        self._created = int(time.time())

    async def root(self, request: Request) -> Response:
        """Name the server, and where its endpoints are described."""
        return JSONResponse({"name": "draftline", "version": __version__, "openapi": "/openapi.json"})

    async def live(self, request: Request) -> Response:
        """200 as long as the process answers."""
        return JSONResponse({"status": "live"})

    async def ready(self, request: Request) -> Response:
        """200 while the engine serves; 503 while it loads, hangs or drains. The body has the status."""
        status = self._state.status
        if status == "ready":
            return JSONResponse({"status": status})
        return JSONResponse({"status": status}, 503, {"retry-after": "1"})

    async def version(self, request: Request) -> Response:
        """The version of Draftline."""
        return JSONResponse({"version": __version__})

    async def metrics(self, request: Request) -> Response:
        """The metrics, in Prometheus's format."""
        text = await asyncio.to_thread(generate_latest, self._registry)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    async def models(self, request: Request) -> Response:
        """The served model under each of its names."""
        info = self._state.engine.info
        return JSONResponse(
            {"object": "list", "data": [self._model(name, info) for name in model_names(self._state.config, info)]}
        )

    async def model(self, request: Request) -> Response:
        """The served model, by one of its names."""
        info = self._state.engine.info
        name = served_model(request.path_params["name"], self._state.config, info)
        return JSONResponse(self._model(name, info))

    def _model(self, name: str, info: EngineInfo) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "draftline",
            "root": info.model,
            "max_model_len": info.max_model_len,
            "system_fingerprint": info.system_fingerprint,
        }
