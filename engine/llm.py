"""``LLM``: offline generation, with the calls of vLLM's class of that name. No threads of its own, no event loop."""

from __future__ import annotations

import gc
import itertools
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, Unpack

from tqdm import tqdm

from draftline.engine.build import build_core
from draftline.engine.config import EngineConfig, EngineOptions
from draftline.engine.core import Core
from draftline.engine.errors import DraftlineError, EngineStoppedError, FieldViolation, InvalidRequestError
from draftline.engine.extraction.attempts import Attempts
from draftline.engine.extraction.progress import ProgressBar, compiling
from draftline.engine.extraction.result import Extraction
from draftline.engine.extraction.task import ExtractionOptions, extraction_attempts
from draftline.engine.loading import engine_fork_problem
from draftline.engine.outputs import ConstraintReport, RequestOutput, Update
from draftline.engine.params import ChatOptions, RequestOptions, SamplingParams, T
from draftline.engine.protocol import EngineInfo, GenerateRequest
from draftline.engine.request.constraints import compile_whole_blocking
from draftline.engine.request.keywords import OF_CHAT, ConstraintInput, as_requests, known_constraint
from draftline.engine.request.prompt_input import Conversation, PromptInput, as_prompts, chats_with_options
from draftline.engine.request.request import Request, RequestBuilder
from draftline.engine.stats import EngineStats
from draftline.engine.streaming.accumulator import Accumulator
from draftline.engine.tools.output_reader import RequestReader
from draftline.models.tokenization.tokenizer import Tokenizer


class LLM:
    """A model that answers many prompts at once.

    Its calls return when all answers are complete, so tokens need not come at a steady pace: ``inter_token_target`` is
    infinite unless it is given. Threads may share it: their calls run one after the other.

    Example:
        >>> with LLM("smollm2", dtype="float32") as llm:
        ...     outputs = llm.generate(["The sky is"], SamplingParams(temperature=0, max_tokens=8))
        >>> outputs[0].outputs[0].text
    """

    def __init__(self, model: str = "smollm2", **options: Unpack[EngineOptions]) -> None:
        """Load ``model``.

        Args:
            model: an HF folder, a .gguf file, a hub id, or ``smollm2``, the embedded model.
            **options: the other fields of `EngineConfig`.

        Raises:
            pydantic.ValidationError: an unknown option, or one out of bounds.
            ModelLoadError: the model cannot be loaded.
        """
        self.config = EngineConfig.model_validate({"model": model, "inter_token_target": math.inf, **options})
        core = build_core(self.config)
        self._core: Core | None = core
        self._info, self._tokenizer = core.info, core.tokenizer
        self._builder = RequestBuilder(
            core.info, core.tokenizer, self.config.ageing_s, core.compiler, self.config.default_seed
        )
        self._ids = itertools.count()
        self._turn = _Turn()

    @property
    def info(self) -> EngineInfo:
        """The served model, and the engine's limits."""
        return self._info

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._tokenizer

    def stats(self) -> EngineStats:
        """The engine's counters.

        Raises:
            EngineStoppedError: it was closed.
        """
        return self._open_core().stats()

    def generate(
        self,
        prompts: PromptInput | Iterable[PromptInput],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        constraint: ConstraintInput[T] | Sequence[ConstraintInput[T] | None] | None = None,
        use_tqdm: bool = True,
        **options: Unpack[RequestOptions],
    ) -> list[RequestOutput[T]]:
        """Complete every prompt.

        Args:
            prompts: one prompt, or several. A list of ints is one prompt of token ids.
            sampling_params: for all prompts, or a list with one for each.
            constraint: a constraint on every output, or a list with one for each prompt. A type stands for its
                `Schema`.
            use_tqdm: show a progress bar on standard error.
            **options: see `RequestOptions`: speculation, priority, and timeout in seconds.

        Returns:
            The finished outputs, in the prompts' order. ``parsed`` is the value of the constraint's type.

        Raises:
            InvalidRequestError: a prompt or its parameters cannot be served. No prompt has been started then.
            DeadlineExceededError: a prompt was not finished within ``timeout``.
            EngineStoppedError: the LLM was closed.
        """
        return self._finish(as_requests(as_prompts(prompts), sampling_params, constraint, options), use_tqdm)

    def chat(
        self,
        messages: Conversation | Iterable[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        constraint: ConstraintInput[T] | Sequence[ConstraintInput[T] | None] | None = None,
        use_tqdm: bool = True,
        **options: Unpack[ChatOptions],
    ) -> list[RequestOutput[T]]:
        """Answer one conversation, or each of several, through the model's chat template.

        See `generate` and `ChatOptions`.
        """
        chats, rest = chats_with_options(messages, options)
        return self._finish(as_requests(chats, sampling_params, constraint, rest, own=OF_CHAT), use_tqdm)

    def extract(
        self,
        texts: str | Iterable[str],
        output_type: ConstraintInput[T],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        **options: Unpack[ExtractionOptions[T]],
    ) -> list[Extraction[T]]:
        """Read a value of a type out of every text.

        Args:
            texts: one text, or several.
            output_type: a type, or its `Schema` with options.
            sampling_params: for all texts, or a list with one for each. Greedy where None, and at most 1,024 tokens
                where it does not say.
            **options: see `ExtractionOptions`.

        Returns:
            One result for each text, in order: its value, or its error. Python validators run between two steps.

        Raises:
            InvalidRequestError: an argument for all texts is wrong.
            EngineStoppedError: the LLM was closed.
        """
        attempts = extraction_attempts(
            texts, output_type, sampling_params, options, as_chat=self._info.has_chat_template
        )
        results: dict[int, Extraction[T]] = {}
        waiting = deque(attempts)
        with self._batch() as batch, ProgressBar(len(attempts), show=options.get("use_tqdm", True)) as progress:

            def settle(each: Attempts[T], outcome: RequestOutput[Any] | DraftlineError) -> None:
                result = each.take(outcome)
                if result is None:
                    waiting.appendleft(each)
                else:
                    results[each.index] = result
                    progress.add(result)

            def add_next() -> None:
                each = waiting.popleft()
                try:
                    batch.add(each.index, batch.build(each.request()))
                except InvalidRequestError as error:
                    settle(each, error)

            if waiting:
                add_next()
                progress.begun()
            while waiting or len(batch):
                # Enough for full steps. The other texts are tokenized later, while steps run.
                while waiting and len(batch) < 2 * self._info.max_num_seqs:
                    add_next()
                for index, outcome in batch.step():
                    settle(attempts[index], outcome)
        return [results[each.index] for each in attempts]

    def compile(self, constraint: ConstraintInput[Any]) -> ConstraintReport:
        """Compile a constraint ahead of its first request. Returns when its last table is built.

        Raises:
            InvalidRequestError: it cannot be enforced.
            EngineStoppedError: the LLM was closed.
        """
        return compile_whole_blocking(self._open_core().compiler, known_constraint(constraint))

    def close(self) -> None:
        """Release the model, its cache and the processes that compile constraints, once no call runs. Idempotent.

        In a fork of the process that loaded the model it does nothing.
        """
        if engine_fork_problem():
            return
        with self._turn:
            core, self._core = self._core, None
        if core is not None:
            core.close()

    def __enter__(self) -> Self:
        """The loaded model."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close it."""
        self.close()

    def _open_core(self) -> Core:
        if problem := engine_fork_problem():
            raise EngineStoppedError(problem)
        if self._core is None:
            raise EngineStoppedError("the LLM is closed")
        return self._core

    def _batch(self) -> _Batch:
        self._open_core()  # in a fork, the turn may be that of a thread of the parent
        return _Batch(self._turn, self._open_core, self._builder, self._ids)

    def _finish(self, wanted: Sequence[GenerateRequest], use_tqdm: bool) -> list[RequestOutput[Any]]:
        outcomes: dict[int, RequestOutput[Any] | DraftlineError] = {}
        with (
            self._batch() as batch,
            tqdm(total=len(wanted), desc="Prompts", unit="prompt", disable=not use_tqdm, dynamic_ncols=True) as bar,
        ):
            # All are checked before the first is queued.
            constrained = any(each.constraint is not None for each in wanted)
            with compiling(bar, "Prompts") if constrained else nullcontext():
                requests = [batch.build(each) for each in wanted]
            for index, built in enumerate(requests):
                batch.add(index, built)
            while len(batch):
                for index, outcome in batch.step():
                    outcomes[index] = outcome
                    bar.update()
        outputs: list[RequestOutput[Any]] = []
        for index in range(len(wanted)):
            outcome = outcomes[index]
            if isinstance(outcome, DraftlineError):
                raise outcome
            outputs.append(outcome)
        return outputs


@dataclass(frozen=True, slots=True)
class _Built:
    """A request that the core can run, and what its updates become."""

    request: Request
    reader: RequestReader
    accumulator: Accumulator


class _Turn:
    """The calls of an LLM one at a time: of its threads, one has the core."""

    def __init__(self) -> None:
        """No thread has it."""
        self._lock = threading.Lock()
        self._thread: int | None = None

    def __enter__(self) -> None:
        """Wait for this thread's turn.

        Raises:
            InvalidRequestError: it has it already.
        """
        if self._thread == threading.get_ident():
            problem = "runs a call of this thread already: a validator of its type cannot call it"
            raise InvalidRequestError(FieldViolation("LLM", problem))
        self._lock.acquire()
        self._thread = threading.get_ident()

    def __exit__(self, *_: object) -> None:
        """End this thread's turn."""
        self._thread = None
        self._lock.release()


class _Batch:
    """The requests of one call. Leaving it early, also by Ctrl-C, ends those that run.

    Meanwhile the garbage collector skips all older objects: to look through the modules and the model takes some 0.1 s.
    """

    def __init__(self, turn: _Turn, open_core: Callable[[], Core], builder: RequestBuilder, ids: Iterator[int]) -> None:
        self._turn = turn
        self._open_core = open_core
        self._builder = builder
        self._ids = ids
        self._running: dict[str, tuple[int, _Built]] = {}
        self._ended: list[str] = []
        self._freezes = False

    def build(self, wanted: GenerateRequest) -> _Built:
        """Validate a request. Blocks while its constraint compiles.

        Raises:
            InvalidRequestError: it cannot be served.
        """
        now = self._core.now()
        prepared = self._builder.prepare(str(next(self._ids)), wanted)
        request = prepared.begin(self._sink, now)
        return _Built(request, prepared.reader, Accumulator(request.request_id, wanted, request.prompt_token_ids))

    def add(self, index: int, built: _Built) -> None:
        """Queue a request, under the caller's index. More may be added while others run."""
        self._running[built.request.request_id] = index, built
        self._core.add(built.request)

    def __len__(self) -> int:
        """The number of requests that have not ended."""
        return len(self._running)

    def step(self) -> list[tuple[int, RequestOutput[Any] | DraftlineError]]:
        """Run one step of the engine. Returns the index and the outcome of each request that ended."""
        if self._running:
            self._core.step()
        outcomes: list[tuple[int, RequestOutput[Any] | DraftlineError]] = []
        for request_id in self._ended:
            index, built = self._running.pop(request_id)
            try:
                outcomes.append((index, built.accumulator.result()))
            except DraftlineError as error:
                self._core.cancel(request_id)
                outcomes.append((index, error))
        self._ended = []
        return outcomes

    def __enter__(self) -> Self:
        """The batch, without requests, once it is this thread's turn.

        Raises:
            InvalidRequestError: it is this thread's turn already.
            EngineStoppedError: the LLM was closed.
        """
        with ExitStack() as undo:
            undo.enter_context(self._turn)
            self._core = self._open_core()
            self._ends = undo.pop_all()
        self._freezes = not gc.get_freeze_count()  # else the program, or another call, has done so
        if self._freezes:
            gc.freeze()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Let no request stay in the core."""
        with self._ends:
            if self._freezes:
                gc.unfreeze()
            if self._running:
                for request_id in self._running:
                    self._core.cancel(request_id)
                self._core.step()

    def _sink(self, updates: Sequence[tuple[str, Update]]) -> None:
        for request_id, update in updates:
            running = self._running.get(request_id)
            if running is None:
                continue  # it has failed
            _, built = running
            for each in built.reader.read(update):
                if built.accumulator.take(each):
                    self._ended.append(request_id)
