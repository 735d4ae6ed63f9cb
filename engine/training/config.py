"""``TrainDraftConfig``: every option of ``draftline train-draft``, with its default, bounds and meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class TrainDraftConfig(BaseModel):
    """How a draft model is trained."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    layers: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        default=(),
        max_length=64,
        description="a target's layer that the draft begins with; its first and its last where unset",
    )
    sample_tokens: int = Field(
        default=12_000_000, ge=1, le=10**10, description="tokens that the target writes to train on"
    )
    answer_tokens: int = Field(default=256, ge=2, le=1 << 20, description="most tokens of one of its answers")
    held_out: int = Field(
        default=256, ge=1, le=100_000, description="prompts of each kind to choose by, and as many to report on"
    )
    samples: Path | None = Field(
        default=None,
        description="file that keeps what the target wrote; a later run uses it, and writes what is missing",
    )
    epochs: int = Field(default=3, ge=1, le=1000, description="how often each answer is trained on")
    train_seconds: float | None = Field(
        default=None, gt=0, description="when to stop training at the latest; samples take their time before"
    )
    batch_tokens: int = Field(default=8192, ge=16, le=1 << 24, description="tokens of one training step")
    learning_rate: float = Field(default=3e-4, gt=0, le=1, description="the highest, of AdamW, before its cosine")
    evaluations: int = Field(default=10, ge=1, le=10_000, description="how often acceptance is measured on the way")
    measured_drafts: int = Field(
        default=4, ge=1, le=16, description="drafts of a verify that acceptance is measured with"
    )
    train_seed: int = Field(default=0, ge=0, le=2**32, description="of prompts, answers and training order")
