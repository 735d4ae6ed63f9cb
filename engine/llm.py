"""``LLM``: offline generation, in the shape that vLLM's users know. No threads, no event loop."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tqdm import tqdm

from draftline.engine.build import build_core
from draftline.engine.config import EngineConfig
from draftline.engine.outputs import RequestOutput, Update
from draftline.engine.params import Constraint, SamplingParams, Speculation
from draftline.engine.protocol import EngineInfo, GenerateRequest, Prompt
from draftline.engine.request.prompt_input import Message, PromptInput, as_chats, as_prompts, per_prompt
from draftline.engine.request.request import RequestBuilder
from draftline.engine.stats import EngineStats
from draftline.engine.streaming.accumulator import Accumulator
from draftline.models.tokenization.tokenizer import Tokenizer


class LLM:
    """A model that answers many prompts at once.

    Example:
        >>> llm = LLM("smollm2", dtype="float32")
        >>> llm.generate(["The sky is"], SamplingParams(temperature=0, max_tokens=8))[0].outputs[0].text
    """

    def __init__(self, model: str = "smollm2", **options: object) -> None:
        """Load ``model``; ``options`` are `EngineConfig`'s other fields.

        Raises:
            pydantic.ValidationError: an unknown option, or one out of bounds.
            ModelLoadError: the model cannot be loaded.
        """
        self.config = EngineConfig.model_validate({"model": model, **options})
        self._core = build_core(self.config)
        self._builder = RequestBuilder(self._core.info, self._core.tokenizer, self.config.ageing_s, self._core.compiler)
        self._ids = itertools.count()

    @property
    def info(self) -> EngineInfo:
        """What is served, and its limits."""
        return self._core.info

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._core.tokenizer

    def stats(self) -> EngineStats:
        """The engine's counters."""
        return self._core.stats()

    def generate(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        constraint: Constraint | None = None,
        speculation: Speculation | None = None,
        priority: int = 0,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Complete every prompt.

        Args:
            prompts: one prompt, or a list of them. A list of ints is one prompt of token ids.
            sampling_params: for all prompts, or one for each.
            constraint: what every output must match.
            speculation: how the prompts are drafted ahead.
            priority: higher runs first.
            use_tqdm: show a progress bar on standard error.

        Returns:
            The finished outputs, in the prompts' order.

        Raises:
            InvalidRequestError: a prompt or its parameters cannot be served; none has been started then.
        """
        listed = as_prompts(prompts)
        return self._run(listed, sampling_params, constraint, speculation or Speculation(), priority, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        constraint: Constraint | None = None,
        speculation: Speculation | None = None,
        priority: int = 0,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer one conversation, or each of a list of them, through the model's chat template. See `generate`."""
        return self._run(
            as_chats(messages), sampling_params, constraint, speculation or Speculation(), priority, use_tqdm
        )

    def _run(
        self,
        prompts: Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        constraint: Constraint | None,
        speculation: Speculation,
        priority: int,
        use_tqdm: bool,
    ) -> list[RequestOutput]:
        results: dict[str, Accumulator] = {}

        def sink(updates: Sequence[tuple[str, Update]]) -> None:
            for request_id, update in updates:
                bar.update(results[request_id].take(update))

        requests = []
        for prompt, sampling in zip(prompts, per_prompt(sampling_params, len(prompts)), strict=True):
            wanted = GenerateRequest(prompt, sampling, constraint, speculation, priority)
            requests.append(self._builder.build(str(next(self._ids)), wanted, sink, self._core.now()))
        with tqdm(total=len(requests), desc="Prompts", unit="prompt", disable=not use_tqdm, dynamic_ncols=True) as bar:
            for request in requests:
                results[request.request_id] = Accumulator.of(request)
                self._core.add(request)
            try:
                while self._core.has_work:
                    self._core.step()
            except BaseException:  # also KeyboardInterrupt: leave nothing running behind
                for request in requests:
                    self._core.cancel(request.request_id)
                self._core.step()
                raise
        return [accumulator.result() for accumulator in results.values()]
