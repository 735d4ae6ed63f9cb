"""``EngineClient``: what the faces (gRPC, AsyncEngine, CLI) need of an engine, wherever its step loop runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from draftline.engine.cache_journal import CacheJournal
from draftline.engine.histogram import HistogramCounts
from draftline.engine.outputs import Update
from draftline.engine.params import Constraint, SamplingParams, Speculation
from draftline.engine.step_times import NO_TIME, StepTimes
from draftline.models.config import ModelConfig

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path

    from draftline.engine.errors import EngineStoppedError
    from draftline.models.tokenizer import Tokenizer  # loads what reads models, which the command line can do without
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


@dataclass(frozen=True, slots=True)
class DrafterStats:
    """What a drafter has done since the start.

    Attributes:
        name: which.
        steps: how often a sequence was drafted for.
        drafted_by_position: how often there was a first, second, … draft.
        accepted_by_position: how often it was accepted.
        times: of the steps with drafts, all together.
    """

    name: str
    steps: int = 0
    drafted_by_position: tuple[int, ...] = ()
    accepted_by_position: tuple[int, ...] = ()
    times: StepTimes = NO_TIME

    @property
    def drafted(self) -> int:
        """All drafts."""
        return sum(self.drafted_by_position)

    @property
    def accepted(self) -> int:
        """All that were accepted."""
        return sum(self.accepted_by_position)

    @property
    def acceptance_length(self) -> float:
        """Tokens that a step with drafts decides for a sequence, on average; 1 where there was none."""
        return 1 + self.accepted / self.steps if self.steps else 1.0


NO_DRAFTS = DrafterStats("none")


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine's state at one moment, and its counts since the start.

    Attributes:
        running: sequences with a slot.
        waiting: sequences without one, the preempted among them.
        free_blocks: cache blocks whose contents mean nothing.
        cached_blocks: blocks that no sequence holds but a prefix hit can use.
        total_blocks: all blocks.
        steps: steps that were read.
        generated_tokens: tokens that outputs kept.
        preemptions: how often a sequence lost its place.
        prefix_hit_tokens: prompt tokens that were found in the cache.
        prefix_query_tokens: prompt tokens of sequences that were admitted.
        drafter: what its drafter has done.
        queued_requests: requests that have not run yet.
        queued_tokens: their prompts' tokens.
        token_gaps: seconds between two steps, counted once for each sequence that went on from the one to the other.
    """

    running: int
    waiting: int
    free_blocks: int
    cached_blocks: int
    total_blocks: int
    steps: int
    generated_tokens: int
    preemptions: int
    prefix_hit_tokens: int
    prefix_query_tokens: int
    drafter: DrafterStats = NO_DRAFTS
    queued_requests: int = 0
    queued_tokens: int = 0
    token_gaps: HistogramCounts = field(default_factory=HistogramCounts)

    @property
    def drafted_tokens(self) -> int:
        """Tokens that were drafted and verified."""
        return self.drafter.drafted

    @property
    def accepted_tokens(self) -> int:
        """Those of them that were accepted."""
        return self.drafter.accepted


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
