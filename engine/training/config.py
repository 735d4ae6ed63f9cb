"""``TrainDraftConfig``: every option of ``draftline train-draft``, with its default, bounds and meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from draftline.engine.options import Options


class TrainDraftConfig(Options):
    """How a draft model is trained."""

    layers: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        default=(),
        max_length=64,
        description="a layer of the target that initializes one of the draft's; the first and the last where unset",
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
