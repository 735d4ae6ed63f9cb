"""``EngineConfig``: every option of an engine, with its default, bounds and meaning in one place.

It serves `LLM`, `AsyncEngine`, the command line's flags and ``--config file.yaml`` alike.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

DType = Literal["auto", "float32", "bfloat16", "float16"]


class EngineConfig(BaseModel):
    """The options of an engine."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    model: str = Field(
        default="smollm2",
        min_length=1,
        description="an HF folder, a .gguf file, a hub id, or 'smollm2' (the embedded SmolLM2-135M-Instruct)",
    )
    tokenizer: str | None = Field(default=None, description="where the tokenizer is, if not with the model")
    load_format: Literal["auto", "dummy"] = Field(
        default="auto", description="'dummy' takes the model's shape and random weights, for benchmarks"
    )
    dtype: DType = Field(
        default="auto", description="what activations and cache are computed in; 'auto' is bfloat16 where that pays"
    )
    quantization: Literal["auto", "fp8", "int8"] = Field(
        default="auto",
        description="'fp8' or 'int8' converts dense weights while they are loaded; 'auto' leaves them as the checkpoint has them",
    )
    device: str = Field(default="auto", description="'cpu', 'cuda', 'cuda:1', …; 'auto' is a GPU where there is one")
    max_model_len: int | None = Field(
        default=None, ge=2, description="longest prompt plus output, in tokens; the model's own limit where unset"
    )
    max_num_seqs: int = Field(default=256, ge=1, le=4096, description="most outputs generated at once")
    max_batched_tokens: int | None = Field(
        default=None,
        ge=1,
        le=1 << 20,
        description="most tokens one step computes; 512 on a CPU, 8192 on a GPU where unset",
    )
    block_size: int = Field(default=16, ge=8, le=256, multiple_of=8, description="tokens a cache block")
    kv_cache_memory_gib: float | None = Field(
        default=None, gt=0, description="size of the key/value cache; 1 GiB on a CPU, what is left on a GPU where unset"
    )
    kv_cache_dtype: Literal["auto", "bfloat16", "fp8", "int8"] = Field(
        default="auto",
        description="what the key/value cache is kept in: 'fp8' is e4m3 without scales, 'int8' has a scale for each head "
        "of a token; 'auto' is what activations are computed in",
    )
    gpu_memory_utilization: float = Field(
        default=0.9, gt=0, le=1, description="share of the GPU's memory that weights, cache and activations may take"
    )
    enforce_eager: bool = Field(
        default=False, description="launch every operation from the host instead of replaying CUDA graphs"
    )
    drafter: Literal["auto", "none", "forced", "ngram", "ngram_table", "draft_model"] = Field(
        default="auto",
        description="what guesses tokens ahead: 'forced' writes what a constraint leaves no choice in, as the others do too; "
        "'ngram' looks them up in the sequence itself, 'ngram_table' also in what others were given, 'draft_model' is a "
        "smaller model; 'auto' is draft_model where one is given, else ngram on a CPU, and none on a GPU",
    )
    draft_model: str | None = Field(
        default=None,
        min_length=1,
        description="a model with the same vocabulary that drafts: its name as for model, or what train-draft has made",
    )
    draft_quantization: Literal["auto", "fp8", "int8"] = Field(
        default="auto",
        description="'fp8' or 'int8' converts the draft model's dense weights while they are loaded: drafts come sooner, a few "
        "fewer are right, and no output changes",
    )
    ngram_entries: int = Field(
        default=1 << 20, ge=1 << 8, le=1 << 28, description="n-grams that ngram_table remembers, a power of two"
    )
    draft_tokens: int = Field(default=4, ge=1, le=16, description="most tokens drafted for one step of a sequence")
    draft_length: Literal["adaptive", "fixed"] = Field(
        default="adaptive", description="draft as many tokens as pay, down to none, or always draft_tokens"
    )
    synthetic_acceptance: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="for benchmarks only, since outputs are then wrong: each draft is accepted with this chance, whatever "
        "the models say",
    )
    prefix_caching: bool = Field(default=True, description="reuse the cache of prompts' common beginnings")
    max_waiting: int = Field(default=1024, ge=1, description="most requests that wait; more are refused")
    max_waiting_tokens: int = Field(
        default=4 << 20, ge=1, description="most tokens that the prompts of waiting requests have together"
    )
    ageing_s: float = Field(
        default=5.0, gt=0, description="seconds of head start in the queue for each unit of priority"
    )

    @field_validator("ngram_entries")
    @classmethod
    def _a_power_of_two(cls, value: int) -> int:
        if value & (value - 1):
            raise ValueError(f"{value} is no power of two")
        return value

    @model_validator(mode="after")
    def _draft_model_where_it_drafts(self) -> EngineConfig:
        if self.drafter == "draft_model" and self.draft_model is None:
            raise ValueError("drafter: draft_model needs to be told which: set draft_model")
        if self.draft_model is not None and self.drafter not in ("auto", "draft_model"):
            raise ValueError(f"draft_model: it would not be used, since drafter is {self.drafter}")
        if self.draft_quantization != "auto" and self.draft_model is None:
            raise ValueError(f"draft_quantization: there is no draft model to convert to {self.draft_quantization}")
        return self
