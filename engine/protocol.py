"""``EngineClient``: what the faces (gRPC, AsyncEngine, CLI) need of an engine, wherever its step loop runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from draftline.engine.cache_journal import CacheJournal
from draftline.engine.outputs import Update
from draftline.engine.params import Constraint, SamplingParams, Speculation
from draftline.engine.stats import EngineStats
from draftline.models.config import ModelConfig

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path

    from draftline.engine.errors import EngineStoppedError
    from draftline.models.tokenization.tokenizer import (
        Tokenizer,  # loads what reads models, which the command line can do without
    )
    from draftline.structured.compiler import ConstraintCompiler


@dataclass(frozen=True, slots=True)
class Chat:
    """Chat messages, each a role and a content, to be rendered with the model's chat template."""

    messages: tuple[tuple[str, str], ...]


Prompt = str | Sequence[int] | Chat
"""A text, token ids, or a chat."""

Sink = Callable[[Sequence[tuple[str, Update]]], None]
"""Receives one step's (request id, update) pairs, on the step thread. It must return at once and must not raise."""


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One request as its client wrote it."""

    prompt: Prompt
    sampling: SamplingParams = SamplingParams()
    constraint: Constraint | None = None
    speculation: Speculation = Speculation()
    priority: int = 0
    timeout_s: float | None = None
    """Seconds from its submission after which it ends, whether it has run or not."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine serves, and its limits.

    Where ``synthetic_acceptance`` is set, drafts are accepted by chance, and outputs mean nothing.
    """

    model: str
    config: ModelConfig
    eos_token_ids: tuple[int, ...]
    quantization: str
    dtype: str
    device: str
    max_model_len: int
    max_num_seqs: int
    cache_blocks: int
    block_size: int
    drafters: tuple[str, ...]
    constraint_kinds: tuple[str, ...]
    synthetic_acceptance: float | None = None


class EngineClient(Protocol):
    """A running engine. All methods are thread-safe and return without waiting for the model.

    Attributes:
        info: what it serves, and its limits.
        tokenizer: the model's.
        compiler: compiles constraints; None where the engine enforces none.
        journal: what its prefix cache holds.
        stopped: done once the engine has ended: None where it was closed, or the fault that it could not survive.
    """

    info: EngineInfo
    tokenizer: Tokenizer
    compiler: ConstraintCompiler | None
    journal: CacheJournal
    stopped: Future[EngineStoppedError | None]

    def submit(self, request_id: str, request: GenerateRequest, sink: Sink) -> Sequence[int]:
        """Queue a request; its updates go to ``sink``. Tokenizes in the calling thread; returns the prompt's token ids.

        Exactly ``n`` Finished (one for each index), or one Failed, end the request.

        Raises:
            InvalidRequestError: the request cannot be served as asked.
            DuplicateRequestError: ``request_id`` is running already.
            QueueFullError: too many requests wait.
            EngineStoppedError: the engine is draining or stopped.
        """
        ...

    def cancel(self, request_id: str) -> bool:
        """End a request; it finishes with CANCELLED within a step. Whether it was running: cancelling twice is harmless."""
        ...

    def stats(self) -> EngineStats:
        """The engine's state now."""
        ...

    def flush_prefix_cache(self) -> Future[int]:
        """Free the cache blocks that no sequence holds; how many there were."""
        ...

    def start_profile(self) -> Future[None]:
        """Profile the steps from now on.

        Raises:
            ProfilerError: (from the future) they are being profiled already.
        """
        ...

    def stop_profile(self, path: Path) -> Future[None]:
        """Stop profiling, and write the trace to ``path``."""
        ...
