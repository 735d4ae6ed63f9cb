"""``EngineConfig``: every option of an engine, with its default, bounds and meaning in one place.

It serves `LLM`, `AsyncEngine`, the command line's flags and ``--config file.yaml`` alike. `EngineOptions` repeats its
names and types for type checkers, which cannot read keyword arguments from a model; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict, get_args

from pydantic import Field, field_validator, model_validator

from draftline.engine.options import Options
from draftline.engine.vllm_names import ENGINE_ALIASES, ENGINE_FOREIGN

DType = Literal["auto", "float32", "bfloat16", "float16"]
CacheDType = Literal["auto", "bfloat16", "fp8", "int8"]
Conversion = Literal["auto", "fp8", "int8"]
ToolFormatName = Literal[
    "auto",
    "hermes",
    "mistral_args",
    "mistral",
    "mistral_tekken",
    "deepseek",
    "deepseek_v31",
    "pythonic",
    "llama3_json",
    "json",
]
LoadFormat = Literal["auto", "dummy"]
DrafterName = Literal["auto", "none", "forced", "ngram", "ngram_table", "draft_model"]
DraftLength = Literal["adaptive", "fixed"]
Kernels = Literal["auto", "reference"]
Scheduling = Literal["fair", "fcfs", "priority", "shortest"]

_IDLE_WITH: Mapping[str, tuple[DrafterName, ...]] = {
    "draft_tokens": ("none",),
    "draft_length": ("none", "forced"),
    "ngram_entries": tuple(name for name in get_args(DrafterName) if name != "ngram_table"),
}
"""Options of drafts, with the drafters for which they would have no effect."""

_OF_DRAFTS = (
    "draft_model", "draft_quantization", "draft_tensor_parallel_size", "ngram_entries", "draft_tokens", "draft_length",
    "synthetic_acceptance",
)  # fmt: skip


def without_drafts(options: Mapping[str, Any]) -> dict[str, Any]:
    """The same options, by name, of an engine that never drafts."""
    return {name: value for name, value in options.items() if name not in _OF_DRAFTS} | {"drafter": "none"}


class EngineConfig(Options):
    """The options of an engine."""

    foreign = ENGINE_FOREIGN
    aliases = ENGINE_ALIASES

    model: str = Field(
        default="smollm2",
        min_length=1,
        description="an HF folder, a .gguf file, a hub id, or 'smollm2' (the embedded SmolLM2-135M-Instruct)",
    )
    tokenizer: str | None = Field(
        default=None, min_length=1, description="where to find the tokenizer; with the model where unset"
    )
    chat_template: str | None = Field(
        default=None, min_length=1, description="file with a Jinja chat template; the model's own where unset"
    )
    tool_format: ToolFormatName = Field(
        default="auto", description="how the model writes tool calls; 'auto' is what its chat template shows"
    )
    load_format: LoadFormat = Field(
        default="auto", description="'dummy' takes the model's shape with random weights, for benchmarks"
    )
    dtype: DType = Field(
        default="auto",
        description="dtype of activations and cache; 'auto' is bfloat16 on a GPU, on a CPU the one that it is fastest in; on a "
        "CPU, 'float16' is the dtype of weights, and activations and cache are float32",
    )
    quantization: Conversion = Field(
        default="auto",
        description="'fp8' or 'int8' converts the projections while they are loaded, the output projection to INT8; 'auto' "
        "keeps the checkpoint's format",
    )
    device: str = Field(
        default="auto",
        min_length=1,
        description="'cpu', 'cuda', 'cuda:1', …; 'auto' is a GPU where there is one, and of different ones that with most memory",
    )
    tensor_parallel_size: int = Field(
        default=1,
        ge=1,
        le=8,
        description="devices of this host that share the model, each with a part of every projection; 'cpu' takes as many "
        "processes, GPUs are those from device on",
    )
    max_model_len: int | None = Field(
        default=None, ge=2, description="max prompt plus output, in tokens; the model's own limit where unset"
    )
    max_num_seqs: int = Field(default=256, ge=1, le=4096, description="max outputs generated at once")
    max_batched_tokens: int | None = Field(
        default=None,
        ge=1,
        le=1 << 20,
        description="max tokens computed in one step; 512 on a CPU, 8192 on a GPU where unset",
    )
    block_size: int = Field(default=16, ge=8, le=256, multiple_of=8, description="tokens per cache block")
    kv_cache_memory_gib: float | None = Field(
        default=None,
        gt=0,
        description="size of the key/value cache; where unset 1 GiB on a CPU, on a GPU the memory that is left",
    )
    kv_cache_dtype: CacheDType = Field(
        default="auto",
        description="dtype of the key/value cache: 'fp8' is e4m3 without scales, 'int8' has one scale per head and token; "
        "'auto' is the activations' dtype",
    )
    gpu_memory_utilization: float = Field(
        default=0.9,
        gt=0,
        le=1,
        description="share of a GPU's memory for weights, cache and activations, from which the cache has its size",
    )
    enforce_eager: bool = Field(default=False, description="launch each operation from the host, without CUDA graphs")
    kernels: Kernels = Field(
        default="auto",
        description="'reference' runs plain torch, operation by operation: slow, to compare with; 'auto' is the device's own",
    )
    constraint_cache: str = Field(
        default="auto",
        min_length=1,
        description="folder of compiled constraints, which later processes reuse; 'auto' is the user's cache folder "
        "(~/.cache/draftline/constraints), 'none' keeps them in memory only",
    )
    drafter: DrafterName = Field(
        default="auto",
        description="where draft tokens come from: 'forced' drafts tokens that a constraint leaves no choice in (all drafters "
        "do); 'ngram' looks them up in the sequence, 'ngram_table' also in other requests; 'draft_model' is a smaller model or "
        "a head; 'auto' is draft_model where one is given, behind ngram if it is a head; else the embedded model's head, and for "
        "other models ngram on a CPU and none on a GPU",
    )
    draft_model: str | None = Field(
        default=None,
        min_length=1,
        description="a draft model with the same vocabulary: a name as for model, or a folder that train-draft made; or an "
        "EAGLE-3 head that was trained for the model",
    )
    draft_quantization: Conversion = Field(
        default="auto",
        description="'fp8' or 'int8' converts the draft model's dense weights while they are loaded: drafts are faster, "
        "slightly fewer are accepted, and no output changes",
    )
    draft_tensor_parallel_size: int | None = Field(
        default=None,
        ge=1,
        description="devices that share the draft model: 1, or as many as share the model; where unset, GPUs share one with large "
        "layers; a head is never shared",
    )
    ngram_entries: int = Field(
        default=1 << 20, ge=1 << 8, le=1 << 28, description="n-grams that ngram_table remembers, a power of two"
    )
    draft_tokens: int = Field(default=4, ge=1, le=16, description="max tokens drafted for one step of a sequence")
    draft_length: DraftLength = Field(
        default="adaptive",
        description="'adaptive' drafts as many tokens as are worth it, possibly none; 'fixed' always drafts draft_tokens",
    )
    synthetic_acceptance: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="for benchmarks only: accept each draft with this probability, whatever the models say; outputs are "
        "wrong, and constraints are refused",
    )
    default_seed: int | None = Field(
        default=None,
        ge=0,
        le=2**64 - 1,
        description="seed from which requests without one get theirs, in the order of their arrival; random where unset",
    )
    prefix_caching: bool = Field(default=True, description="reuse the cache of prompts' common prefixes")
    max_waiting: int = Field(default=1024, ge=1, description="max waiting requests; more are refused")
    max_waiting_tokens: int = Field(
        default=4 << 20, ge=1, description="max tokens of the prompts of all waiting requests together"
    )
    ageing_s: float = Field(
        default=5.0, gt=0, description="seconds of head start in the queue for each unit of priority"
    )
    scheduling: Scheduling = Field(
        default="fair",
        description="order of the queue: 'fair' shares the engine between callers, and priorities buy a head start; 'fcfs' is "
        "by arrival; 'priority' strictly by priority; 'shortest' by tokens",
    )
    log_steps: bool = Field(default=False, description="log each step's plan and time, at level info")

    inter_token_target: float = Field(
        default=0.08,
        gt=0,
        description="seconds that a step may take while sequences decode: chunks of long prompts are cut to fit",
    )

    @field_validator("ngram_entries")
    @classmethod
    def _a_power_of_two(cls, value: int) -> int:
        if value & (value - 1):
            raise ValueError(f"{value} is not a power of two")
        return value

    @model_validator(mode="after")
    def _head_starts_where_they_count(self) -> EngineConfig:
        if self.scheduling != "fair" and "ageing_s" in self.model_fields_set:
            raise ValueError(f"ageing_s: has no effect where scheduling is {self.scheduling}")
        return self

    @model_validator(mode="after")
    def _cache_has_one_size(self) -> EngineConfig:
        if self.kv_cache_memory_gib is not None and "gpu_memory_utilization" in self.model_fields_set:
            raise ValueError("gpu_memory_utilization: has no effect where kv_cache_memory_gib is set")
        return self

    @property
    def uses_graphs(self) -> bool:
        """Whether a GPU runs steps as CUDA graphs.

        The reference's operations wait for the device, which no graph can.
        """
        return not self.enforce_eager and self.kernels == "auto"

    @model_validator(mode="after")
    def _draft_model_where_it_drafts(self) -> EngineConfig:
        if self.drafter == "draft_model" and self.draft_model is None:
            raise ValueError("drafter: 'draft_model' needs the name of one: set draft_model")
        if self.draft_model is not None and self.drafter not in ("auto", "draft_model"):
            raise ValueError(f"draft_model: is not used where drafter is {self.drafter}")
        for name, drafters in _IDLE_WITH.items():
            if name in self.model_fields_set and self.drafter in drafters:
                raise ValueError(f"{name}: has no effect where drafter is {self.drafter}")
        if self.synthetic_acceptance is not None and self.drafter in ("none", "forced"):
            raise ValueError(f"synthetic_acceptance: there are no drafts to accept where drafter is {self.drafter}")
        if self.draft_quantization != "auto" and self.draft_model is None:
            raise ValueError(f"draft_quantization: there is no draft model to convert to {self.draft_quantization}")
        sharing = self.draft_tensor_parallel_size or 1
        if sharing > 1 and self.draft_model is None:
            raise ValueError("draft_tensor_parallel_size: there is no draft model to share")
        if sharing not in (1, self.tensor_parallel_size):
            raise ValueError(
                f"draft_tensor_parallel_size: {sharing} is neither 1 nor tensor_parallel_size, "
                f"which is {self.tensor_parallel_size}"
            )
        return self


class EngineOptions(TypedDict, total=False):
    """`EngineConfig`'s options other than the model, as the keywords of `LLM` and `AsyncEngine`."""

    tokenizer: str | None
    chat_template: str | None
    tool_format: ToolFormatName
    load_format: LoadFormat
    dtype: DType
    quantization: Conversion
    device: str
    tensor_parallel_size: int
    max_model_len: int | None
    max_num_seqs: int
    max_batched_tokens: int | None
    block_size: int
    kv_cache_memory_gib: float | None
    kv_cache_dtype: CacheDType
    gpu_memory_utilization: float
    enforce_eager: bool
    kernels: Kernels
    constraint_cache: str
    drafter: DrafterName
    draft_model: str | None
    draft_quantization: Conversion
    draft_tensor_parallel_size: int | None
    ngram_entries: int
    draft_tokens: int
    draft_length: DraftLength
    synthetic_acceptance: float | None
    default_seed: int | None
    prefix_caching: bool
    max_waiting: int
    max_waiting_tokens: int
    ageing_s: float
    scheduling: Scheduling
    log_steps: bool
    inter_token_target: float
