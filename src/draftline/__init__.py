"""Draftline: an asyncio streaming inference engine for language models."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

# Between two operators of a step OpenMP's threads should neither sleep (waking them costs more than a small linear)
# nor spin for long (that starves a second process): a few microseconds. Read once, when torch is first imported.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")

if TYPE_CHECKING:
    from draftline.engine.async_engine import AsyncEngine
    from draftline.engine.client.async_client import AsyncClient, Tls
    from draftline.engine.client.retry import RetryPolicy
    from draftline.engine.client.sync_client import Client
    from draftline.engine.config import EngineConfig
    from draftline.engine.llm import LLM
    from draftline.engine.outputs import CompletionOutput, RequestOutput
    from draftline.engine.params import Constraint, SamplingParams, Speculation
    from draftline.engine.protocol import Chat
    from draftline.engine.schema import Schema

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "AsyncClient",
    "AsyncEngine",
    "Chat",
    "Client",
    "CompletionOutput",
    "Constraint",
    "EngineConfig",
    "RequestOutput",
    "RetryPolicy",
    "SamplingParams",
    "Schema",
    "Speculation",
    "Tls",
    "__version__",
]

_HOMES = {
    "LLM": "llm",
    "AsyncClient": "client.async_client",
    "AsyncEngine": "async_engine",
    "Chat": "protocol",
    "Client": "client.sync_client",
    "CompletionOutput": "outputs",
    "Constraint": "params",
    "EngineConfig": "config",
    "RequestOutput": "outputs",
    "RetryPolicy": "client.retry",
    "SamplingParams": "params",
    "Schema": "schema",
    "Speculation": "params",
    "Tls": "client.async_client",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: the command line's --help must not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'draftline' has no attribute {name!r}")
    return getattr(importlib.import_module(f"draftline.engine.{_HOMES[name]}"), name)
