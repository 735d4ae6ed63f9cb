"""``EngineClient``: the interface of an engine for its faces (gRPC, AsyncEngine, CLI), wherever its step loop runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from draftline.engine.cache_journal import CacheJournal
from draftline.engine.chat.messages import Chat
from draftline.engine.chat.plan import ChatPlan
from draftline.engine.outputs import Update
from draftline.engine.params import Constraint, SamplingParams, Speculation
from draftline.engine.stats import NO_MEMORY, DevicePeak, EngineStats, MemoryUse
from draftline.models.config import ModelConfig

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path

    from draftline.engine.errors import EngineStoppedError
    from draftline.models.tokenization.tokenizer import Tokenizer  # slow to import, and `--help` does not need it
    from draftline.structured.compiled import CompiledConstraint
    from draftline.structured.compiler import ConstraintCompiler


Prompt = str | Sequence[int] | Chat
"""A text, token ids, or a chat."""

Sink = Callable[[Sequence[tuple[str, Update]]], None]
"""Receives the (request id, update) pairs of one step, on the step thread. It must not block or raise."""


@dataclass(frozen=True, slots=True)
class CompiledPlan:
    """The plan of a request, with its constraint compiled.

    Attributes:
        plan: how the request is constrained, and how its outputs are read.
        compiled: the constraint; None without one.
        compile_s: seconds that the request has waited for it.
    """

    plan: ChatPlan
    compiled: CompiledConstraint | None = None
    compile_s: float = 0.0


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One request as the client wrote it.

    Attributes:
        prompt: a text, token ids, or a chat.
        sampling: how tokens are sampled, and when an output ends.
        constraint: the language of the output; None for any text.
        speculation: whether and how far the request drafts.
        priority: requests with a higher priority run first; a 32-bit integer.
        timeout_s: seconds from its submission until it times out, whether it has run or not; None without a timeout.
        path: the request's place in the arguments of a call for many, for its errors: ``prompts[3]``. Empty for one
            request.
        caller: whose request it is: callers share the engine by their weights.
        weight: the caller's share, relative to other callers.
        prompt_token_ids: the tokens of a text or a chat, if they are known already.
        planned: its plan, if it was made before the request is submitted to an engine.
    """

    prompt: Prompt
    sampling: SamplingParams = SamplingParams()
    constraint: Constraint[Any] | None = None
    speculation: Speculation = Speculation()
    priority: int = 0
    timeout_s: float | None = None
    path: str = ""
    caller: str = ""
    weight: float = 1.0
    prompt_token_ids: Sequence[int] | None = None
    planned: CompiledPlan | None = None

    @property
    def constraint_compile_s(self) -> float:
        """Seconds that it has waited for its constraint, before it is submitted to an engine."""
        return 0.0 if self.planned is None else self.planned.compile_s


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """The model of an engine, and the engine's limits.

    Attributes:
        model: the model as given to the engine: a name or a path.
        config: the model's configuration.
        eos_token_ids: the end-of-sequence tokens.
        quantization: the formats of the checkpoint's weights.
        dtype: the data type of the computation.
        device: the device of the computation.
        max_model_len: limit of tokens of prompt and output together.
        max_num_seqs: limit of sequences in one step.
        cache_blocks: blocks of the KV cache.
        block_size: tokens in a block.
        drafters: the names of the drafters; empty if speculation is off.
        constraint_kinds: the kinds of constraints that requests may have.
        system_fingerprint: names the device kind, data types, versions and arithmetic. Engines of one model with the
            same fingerprint give the same outputs.
        has_chat_template: whether the model has a chat template, which chats need.
        max_token_bytes: the most bytes of UTF-8 that one token of a prompt stands for.
        tool_format: the name of the format of tool calls; empty if it is not known.
        reasoning: the marks around the model's reasoning; None if it does not reason.
        shows_tools: whether the chat template shows tools; otherwise a system message does.
        scheduling: the order of the queue; see `EngineConfig`.
        peak: the device's peak rates; None where they are not known.
        memory: what the engine has taken on its device.
        device_uuids: the GPUs that it runs on, as the driver names them; empty on a CPU.
        synthetic_acceptance: the rate at which drafts are accepted at random, for a benchmark. None accepts them by the
            model. With a rate, outputs have no meaning.
        step_costs: rows, drafts of each and seconds of the steps that adaptive draft lengths have measured, ascending;
            empty where draft lengths are fixed.
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
    system_fingerprint: str
    has_chat_template: bool
    max_token_bytes: int
    synthetic_acceptance: float | None = None
    tool_format: str = ""
    reasoning: tuple[str, str] | None = None
    shows_tools: bool = False
    scheduling: str = "fair"
    peak: DevicePeak | None = None
    memory: MemoryUse = NO_MEMORY
    device_uuids: tuple[str, ...] = ()
    step_costs: tuple[tuple[int, int, float], ...] = ()

    @property
    def drafter(self) -> str:
        """The name of the drafter; "none" if speculation is off."""
        return self.drafters[0] if self.drafters else "none"


class UpdateReader(Protocol):
    """Reads the updates of one request, for their receiver: the engine writes tokens and text alone."""

    @property
    def is_over(self) -> bool:
        """Whether the engine has ended the request."""
        ...

    def read(self, update: Update) -> Sequence[Update]:
        """An update with what its text means: reasoning, calls, tags, JSON.

        At the end, text that was held back comes first.

        A fault ends the request with `Failed`. The receiver then cancels it, and its further updates are dropped.
        """
        ...


@dataclass(frozen=True, slots=True)
class Submitted:
    """A request that an engine has accepted.

    Attributes:
        prompt_token_ids: of its prompt.
        reader: reads its updates. One thread at a time uses it.
    """

    prompt_token_ids: Sequence[int]
    reader: UpdateReader


class EngineClient(Protocol):
    """A running engine. All methods are thread-safe, and none waits for the model.

    Attributes:
        info: the model and the engine's limits.
        tokenizer: the model's tokenizer.
        compiler: compiles constraints.
        journal: the contents of the prefix cache.
        stopped: done when the engine has ended. The result is None after a close, or the fault that ended the engine.
    """

    info: EngineInfo
    tokenizer: Tokenizer
    compiler: ConstraintCompiler
    journal: CacheJournal
    stopped: Future[EngineStoppedError | None]

    def submit(self, request_id: str, request: GenerateRequest, sink: Sink) -> Submitted:
        """Queue a request. Tokenizing its prompt and compiling its constraint block the calling thread.

        The request ends with ``n`` `Finished`, one for each output, or with one `Failed`.

        Args:
            request_id: unique among the requests in flight.
            request: the request.
            sink: receives the request's updates, as the engine writes them: its receiver reads them with the result's
                reader.

        Raises:
            InvalidRequestError: the request is invalid. It lists every field that is wrong.
            DuplicateRequestError: ``request_id`` is running already.
            QueueFullError: too many requests wait.
            EngineStoppedError: the engine is stopping or has stopped.
        """
        ...

    def cancel(self, request_id: str) -> bool:
        """End a request: it finishes with CANCELLED within a step. Cancelling twice is harmless.

        Returns:
            Whether the request was running.
        """
        ...

    def stats(self) -> EngineStats:
        """The engine's current state."""
        ...

    def stats_by_replica(self) -> Sequence[EngineStats]:
        """The current state of each engine that shares the requests."""
        return (self.stats(),)

    def replicas_running(self) -> Sequence[bool]:
        """Which of them have not ended."""
        return (not self.stopped.done(),)

    def replicas_with_work(self) -> Sequence[bool]:
        """Which of them have requests that have not ended."""
        ...

    def flush_prefix_cache(self) -> Future[int]:
        """Free the cache blocks that no sequence holds.

        Returns:
            How many blocks were freed.
        """
        ...

    def start_profile(self) -> Future[None]:
        """Start profiling the steps.

        Returns:
            A future that is done when the profiler runs. It raises `ProfilerError` if it was running already.
        """
        ...

    def stop_profile(self, path: Path) -> Future[None]:
        """Stop profiling, and write the trace to the file ``path``."""
        ...
