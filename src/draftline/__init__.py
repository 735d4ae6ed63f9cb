"""Draftline: an asyncio streaming inference engine for language models."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

# Between two operators of a step OpenMP's threads should neither sleep (waking them costs more than a small linear
# layer) nor spin for long (that starves a second process). torch reads this once, when it is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")

if TYPE_CHECKING:
    from draftline.engine.async_engine import AsyncEngine
    from draftline.engine.chat.calls import Tool, ToolCall, ToolChoice
    from draftline.engine.chat.messages import Chat
    from draftline.engine.client.async_client import AsyncClient
    from draftline.engine.client.retry import RetryPolicy
    from draftline.engine.client.sync_client import Client
    from draftline.engine.client.tls import Tls
    from draftline.engine.config import EngineConfig
    from draftline.engine.errors import (
        CallFailedError,
        ConstraintLimitError,
        DeadlineExceededError,
        DraftlineError,
        DuplicateRequestError,
        EngineStoppedError,
        FieldViolation,
        IncompleteOutputError,
        InvalidOutputError,
        InvalidRequestError,
        OutputError,
        PermissionDeniedError,
        QueueFullError,
        StalledReaderError,
        StepFailedError,
        UnauthenticatedError,
    )
    from draftline.engine.extraction.result import Extraction
    from draftline.engine.llm import LLM
    from draftline.engine.outputs import CompletionOutput, ConstraintReport, RequestOutput
    from draftline.engine.params import Constraint, Reasoning, SamplingParams, Speculation
    from draftline.engine.schema import Schema
    from draftline.models.errors import ModelLoadError
    from draftline.models.tokenization.rendering import Rendering

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "AsyncClient",
    "AsyncEngine",
    "CallFailedError",
    "Chat",
    "Client",
    "CompletionOutput",
    "Constraint",
    "ConstraintLimitError",
    "ConstraintReport",
    "DeadlineExceededError",
    "DraftlineError",
    "DuplicateRequestError",
    "EngineConfig",
    "EngineStoppedError",
    "Extraction",
    "FieldViolation",
    "IncompleteOutputError",
    "InvalidOutputError",
    "InvalidRequestError",
    "ModelLoadError",
    "OutputError",
    "PermissionDeniedError",
    "QueueFullError",
    "Reasoning",
    "Rendering",
    "RequestOutput",
    "RetryPolicy",
    "SamplingParams",
    "Schema",
    "Speculation",
    "StalledReaderError",
    "StepFailedError",
    "Tls",
    "Tool",
    "ToolCall",
    "ToolChoice",
    "UnauthenticatedError",
    "__version__",
]

_MODULES = {
    "LLM": "engine.llm",
    "AsyncClient": "engine.client.async_client",
    "AsyncEngine": "engine.async_engine",
    "CallFailedError": "engine.errors",
    "Chat": "engine.chat.messages",
    "Rendering": "models.tokenization.rendering",
    "Client": "engine.client.sync_client",
    "CompletionOutput": "engine.outputs",
    "Constraint": "engine.params",
    "ConstraintLimitError": "engine.errors",
    "ConstraintReport": "engine.outputs",
    "DeadlineExceededError": "engine.errors",
    "DraftlineError": "engine.errors",
    "DuplicateRequestError": "engine.errors",
    "EngineConfig": "engine.config",
    "EngineStoppedError": "engine.errors",
    "Extraction": "engine.extraction.result",
    "FieldViolation": "engine.errors",
    "IncompleteOutputError": "engine.errors",
    "InvalidOutputError": "engine.errors",
    "InvalidRequestError": "engine.errors",
    "ModelLoadError": "models.errors",
    "OutputError": "engine.errors",
    "PermissionDeniedError": "engine.errors",
    "QueueFullError": "engine.errors",
    "Reasoning": "engine.params",
    "RequestOutput": "engine.outputs",
    "RetryPolicy": "engine.client.retry",
    "SamplingParams": "engine.params",
    "Schema": "engine.schema",
    "Speculation": "engine.params",
    "StalledReaderError": "engine.errors",
    "StepFailedError": "engine.errors",
    "Tls": "engine.client.tls",
    "Tool": "engine.chat.calls",
    "ToolCall": "engine.chat.calls",
    "ToolChoice": "engine.chat.calls",
    "UnauthenticatedError": "engine.errors",
}


def __getattr__(name: str) -> object:
    """Import a public name on first use: ``--help`` must not wait for torch."""
    if name not in _MODULES:
        raise AttributeError(f"module 'draftline' has no attribute {name!r}")
    return getattr(importlib.import_module(f"draftline.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """List the public names, whether they were used or not."""
    return sorted(__all__)
