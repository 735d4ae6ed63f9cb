"""``LLM``: offline generation, with the calls of vLLM's class of that name. No threads, no event loop."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import TracebackType
from typing import Self, Unpack

from tqdm import tqdm

from draftline.engine.build import build_core
from draftline.engine.config import EngineConfig, EngineOptions
from draftline.engine.core import Core
from draftline.engine.errors import EngineStoppedError
from draftline.engine.outputs import RequestOutput, Update
from draftline.engine.params import RequestOptions, SamplingParams
from draftline.engine.protocol import EngineInfo, GenerateRequest
from draftline.engine.request.keywords import as_requests
from draftline.engine.request.prompt_input import Message, PromptInput, as_chats, as_prompts
from draftline.engine.request.request import RequestBuilder
from draftline.engine.stats import EngineStats
from draftline.engine.streaming.accumulator import Accumulator
from draftline.models.tokenization.tokenizer import Tokenizer


class LLM:
    """A model that answers many prompts at once.

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
        self.config = EngineConfig.model_validate({"model": model, **options})
        core = build_core(self.config)
        self._core: Core | None = core
        self._info, self._tokenizer = core.info, core.tokenizer
        self._builder = RequestBuilder(core.info, core.tokenizer, self.config.ageing_s, core.compiler)
        self._ids = itertools.count()

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
        prompts: PromptInput | Sequence[PromptInput],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        **options: Unpack[RequestOptions],
    ) -> list[RequestOutput]:
        """Complete every prompt.

        Args:
            prompts: one prompt, or a list of them. A list of ints is one prompt of token ids.
            sampling_params: for all prompts, or one for each.
            use_tqdm: show a progress bar on standard error.
            **options: see `RequestOptions`: constraint, speculation, priority, and timeout in seconds.

        Returns:
            The finished outputs, in the prompts' order.

        Raises:
            InvalidRequestError: a prompt or its parameters cannot be served. No prompt has been started then.
            DeadlineExceededError: a prompt was not finished within ``timeout``.
            EngineStoppedError: the LLM was closed.
        """
        return self._finish(as_requests(as_prompts(prompts), sampling_params, options), use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        **options: Unpack[RequestOptions],
    ) -> list[RequestOutput]:
        """Answer one conversation, or each of a list of them, through the model's chat template. See `generate`."""
        return self._finish(as_requests(as_chats(messages), sampling_params, options), use_tqdm)

    def close(self) -> None:
        """Release the model, its cache and the processes that compile constraints. Idempotent."""
        core, self._core = self._core, None
        if core is None:
            return
        if core.compiler is not None:
            core.compiler.close()

    def __enter__(self) -> Self:
        """The loaded model."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close it."""
        self.close()

    def _open_core(self) -> Core:
        if self._core is None:
            raise EngineStoppedError("the LLM is closed")
        return self._core

    def _finish(self, wanted: Sequence[GenerateRequest], use_tqdm: bool) -> list[RequestOutput]:
        core = self._open_core()
        results: dict[str, Accumulator] = {}

        def sink(updates: Sequence[tuple[str, Update]]) -> None:
            for request_id, update in updates:
                bar.update(results[request_id].take(update))

        # All are checked before the first is queued.
        requests = [self._builder.build(str(next(self._ids)), each, sink, core.now()) for each in wanted]
        with tqdm(total=len(requests), desc="Prompts", unit="prompt", disable=not use_tqdm, dynamic_ncols=True) as bar:
            for request in requests:
                results[request.request_id] = Accumulator.of(request)
                core.add(request)
            try:
                while core.has_work:
                    core.step()
            except BaseException:  # also KeyboardInterrupt: no request stays in the core
                for request in requests:
                    core.cancel(request.request_id)
                core.step()
                raise
        return [accumulator.result() for accumulator in results.values()]
