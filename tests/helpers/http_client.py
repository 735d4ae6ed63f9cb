"""A client of a server's HTTP face."""

from __future__ import annotations

from typing import Any

import httpx2
from patience import PATIENCE_S

from draftline.engine.server.server import Server


def http_client(server: Server, **options: Any) -> httpx2.AsyncClient:
    """A client with options; with ``verify``, over TLS. Without it no certificates are loaded, which takes most time."""
    scheme = "https" if "verify" in options else "http"
    return httpx2.AsyncClient(
        **{"timeout": PATIENCE_S, "base_url": f"{scheme}://{server.http_address}", "verify": False} | options
    )
