"""``Variant``: an engine with one optimization switched, by an option, or where there is none by a substitute."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from draftline.engine.config import EngineConfig, without_drafts
from draftline.engine.drafting.build import with_embedded_draft
from draftline.engine.errors import UsageError

Batching = Literal["continuous", "static", "single"]
"""How the load is sent: as it arrives, in batches of which the next waits for the last answer of the one before, one by
one."""

BASELINE = "baseline"


@dataclass(frozen=True, slots=True)
class Variant:
    """What is measured in a line of the table.

    Attributes:
        name: the optimization.
        state: what it is switched to.
        options: the engine's options that differ from the baseline's.
        substitutes: names of the parts that are replaced; see `substitutes.py`.
        engine_process: whether the engine has a process of its own.
        batching: how the load is sent.
    """

    name: str
    state: str
    options: Mapping[str, Any] = field(default_factory=dict)
    substitutes: tuple[str, ...] = ()
    engine_process: bool = False
    batching: Batching = "continuous"

    def config(self, baseline: EngineConfig) -> EngineConfig:
        """The options of its engine."""
        kept = baseline.model_dump(exclude_unset=True)
        if self.options.get("drafter") == "none":
            kept = without_drafts(kept)
        return EngineConfig.model_validate({**kept, **self.options})


_GPU_ONLY = {
    "graphs": "a CPU has no graphs",
    "steps-ahead": "on a CPU, steps are not launched ahead",
    "fused-kernels": "a CPU has no kernels of its own",
    "attention": "a CPU's attention is torch's",
    "fp8-weights": "a CPU unpacks eight-bit weights",
}


def _drafts(config: EngineConfig, on_gpu: bool) -> tuple[str, Mapping[str, Any]]:
    has_draft = with_embedded_draft(config).draft_model is not None
    if config.drafter != "none" and (config.drafter != "auto" or has_draft or not on_gpu):
        return "off", {"drafter": "none"}
    return "ngram", {"drafter": "ngram"}


def _fp8(config: EngineConfig, option: str) -> tuple[str, dict[str, Any]]:
    return ("off", {option: "auto"}) if getattr(config, option) == "fp8" else ("on", {option: "fp8"})


def _whole_prompts(config: EngineConfig) -> tuple[str, dict[str, Any]]:
    tokens = max(config.max_batched_tokens or 0, config.max_model_len or 0, 8192)
    return "off", {"inter_token_target": math.inf, "max_batched_tokens": tokens}


_SWITCHES: Mapping[str, Callable[[EngineConfig, bool], Variant]] = {
    "graphs": lambda config, on_gpu: Variant("graphs", "off", {"enforce_eager": True}),
    "steps-ahead": lambda config, on_gpu: Variant("steps-ahead", "off", substitutes=("no-steps-ahead",)),
    "fused-kernels": lambda config, on_gpu: Variant("fused-kernels", "the vendor's products", substitutes=("vendor",)),
    "attention": lambda config, on_gpu: Variant(
        "attention", "torch's reference", {"enforce_eager": True}, ("reference-attention",)
    ),
    "kernels": lambda config, on_gpu: Variant("kernels", "reference", {"kernels": "reference"}),
    "prefix-cache": lambda config, on_gpu: Variant("prefix-cache", "off", {"prefix_caching": False}),
    "chunked-prefill": lambda config, on_gpu: Variant("chunked-prefill", *_whole_prompts(config)),
    "static-batches": lambda config, on_gpu: Variant("continuous-batching", "static batches", batching="static"),
    "one-at-a-time": lambda config, on_gpu: Variant("continuous-batching", "one at a time", batching="single"),
    "drafts": lambda config, on_gpu: Variant("drafts", *_drafts(config, on_gpu)),
    "engine-process": lambda config, on_gpu: Variant(
        "engine-process", "off" if on_gpu else "on", engine_process=not on_gpu
    ),
    "fp8-weights": lambda config, on_gpu: Variant("fp8-weights", *_fp8(config, "quantization")),
    "fp8-cache": lambda config, on_gpu: Variant("fp8-cache", *_fp8(config, "kv_cache_dtype")),
    "all": lambda config, on_gpu: Variant(
        "all",
        "off",
        {
            "kernels": "reference",
            "prefix_caching": False,
            "drafter": "none",
            "quantization": "auto",
            "kv_cache_dtype": "auto",
            **_whole_prompts(config)[1],
        },
        ("no-steps-ahead",),
        batching="single",
    ),
}
"""By name, for options and whether the engine runs on a GPU."""

_CHOOSE_THE_PROCESS = ("engine-process", "all")
"""In the others, the engine has a process of its own where the baseline's has one: on a GPU."""

NAMES = tuple(_SWITCHES)


def variants(config: EngineConfig, on_gpu: bool, only: str | None) -> tuple[list[Variant], dict[str, str]]:
    """The baseline and then each variant.

    Args:
        config: the baseline's options. An optimization that they leave off is switched on instead.
        on_gpu: whether the engine runs on a GPU.
        only: names of variants, with commas; None for all.

    Returns:
        The variants, and of those that this device has no use for, the reason by name.

    Raises:
        UsageError: a name is unknown.
    """
    names = list(NAMES) if only is None else [name.strip() for name in only.split(",")]
    for name in names:
        if name not in _SWITCHES:
            raise UsageError(f"--only: {name!r} is not one of {', '.join(NAMES)}")
    left_out = {name: _GPU_ONLY[name] for name in names if name in _GPU_ONLY and not on_gpu}
    made = [Variant(BASELINE, "", engine_process=on_gpu)]
    for name in names:
        if name not in left_out:
            variant = _SWITCHES[name](config, on_gpu)
            made.append(variant if name in _CHOOSE_THE_PROCESS else replace(variant, engine_process=on_gpu))
    return made, left_out
