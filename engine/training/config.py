"""``TrainDraftConfig``: every option of ``draftline train-draft``, with its default, bounds and meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from draftline.engine.options import Options

DRAFT_VOCAB, UNROLL, PARALLEL_LAYERS = 8192, 4, 2
"""What a head has where its options leave it open: tokens that it can draft, drafts of a round, and layers."""


class TrainDraftConfig(Options):
    """How a draft model or a head is trained."""

    kind: Literal["model", "eagle3", "parallel"] = Field(
        default="model",
        description="'model' trains a small model, 'eagle3' a head that reads the target's hidden states, 'parallel' one that "
        "drafts all tokens in one pass",
    )
    layers: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        default=(),
        max_length=64,
        description="a layer of the target that initializes one of the draft's; the first and the last where unset. For "
        "heads, a layer whose input the head reads; the third, the middle and the third from the end where unset",
    )
    draft_vocab_size: int | None = Field(
        default=None,
        ge=2,
        le=1 << 24,
        description=f"for heads: tokens that the head can draft, the most frequent; {DRAFT_VOCAB} where unset",
    )
    unroll: int | None = Field(
        default=None,
        ge=1,
        le=16,
        description="for heads: drafts of a round that training imitates, and the most that a parallel head drafts; "
        f"{UNROLL} where unset",
    )
    initial_head: str | None = Field(
        default=None,
        description="for heads: a trained head to start from, a folder or a name; it must read the same layers and have the same shape. "
        "Only the tokens that it drafts may differ",
    )
    output_projection: Literal["bfloat16", "fp8"] = Field(
        default="bfloat16",
        description="for eagle3: the format of the file's output projection; fp8 takes half the bytes, and has one scale for each token",
    )
    head_layers: int | None = Field(
        default=None, ge=1, le=8, description=f"for parallel: decoder layers; {PARALLEL_LAYERS} where unset"
    )
    head_mlp_size: int | None = Field(
        default=None, ge=16, le=1 << 20, description="for heads: width of the MLP; the target's where unset"
    )
    stop_after: float | None = Field(
        default=None,
        gt=0,
        description="for heads: stop training after this many seconds; the same command continues it",
    )
    sample_tokens: int = Field(
        default=12_000_000, ge=1, le=10**10, description="tokens of the target's answers to train on"
    )
    answer_tokens: int = Field(default=256, ge=2, le=1 << 20, description="max tokens of one answer")
    held_out: int = Field(
        default=256,
        ge=1,
        le=100_000,
        description="held-out prompts of each kind to choose the checkpoint by, and as many to report on",
    )
    samples: Path | None = Field(
        default=None,
        description="file that keeps the answers; a later run reads it, and adds the answers that are missing",
    )
    epochs: int = Field(default=3, ge=1, le=1000, description="passes over the answers")
    train_seconds: float | None = Field(
        default=None, gt=0, description="time limit of the training, in seconds; writing the answers comes before it"
    )
    batch_tokens: int = Field(default=8192, ge=16, le=1 << 24, description="tokens per training step")
    learning_rate: float = Field(
        default=3e-4, gt=0, le=1, description="AdamW's peak learning rate, from which it decays along a cosine"
    )
    evaluations: int = Field(default=10, ge=1, le=10_000, description="measurements of acceptance during the training")
    measured_drafts: int = Field(
        default=4, ge=1, le=16, description="draft tokens per verification when acceptance is measured"
    )
    train_seed: int = Field(default=0, ge=0, le=2**32, description="seed of prompts, answers and training order")

    @model_validator(mode="after")
    def _options_of_the_kind(self) -> TrainDraftConfig:
        for name in ("draft_vocab_size", "unroll", "stop_after", "initial_head", "head_mlp_size"):
            if self.kind == "model" and getattr(self, name) is not None:
                raise ValueError(f"{name}: is only used where kind is eagle3 or parallel")
        if self.kind != "eagle3" and self.output_projection != "bfloat16":
            raise ValueError("output_projection: is only used where kind is eagle3; a parallel head has its target's")
        if self.kind == "parallel" and self.unroll == 1:
            raise ValueError("unroll: 1 draft a round is not parallel")
        if self.kind == "parallel" and self.measured_drafts > (most := self.unroll or UNROLL):
            raise ValueError(f"measured_drafts: {self.measured_drafts}, but the head drafts at most {most}")
        if self.kind != "parallel" and self.head_layers is not None:
            raise ValueError("head_layers: is only used where kind is parallel")
        return self
