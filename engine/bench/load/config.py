"""``LoadConfig``: the options of a load, and the conversations that they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from draftline.engine.bench.load.datasets import read_dataset
from draftline.engine.bench.load.history import Form
from draftline.engine.bench.load.lengths import FORMS, MAX_LENGTH, Lengths
from draftline.engine.bench.load.workloads import Conversation, Size, Workload, dataset_workload, find_workload
from draftline.engine.options import Options

MAX_RATE = 1_000_000
"""Conversations a second."""


class LoadConfig(Options):
    """The load of a measurement."""

    workload: str = Field(
        default="baseline",
        description="baseline, continuous_batching, paged_attention, chunked_prefill, prefix_caching, agent-session or "
        "chat-serving",
    )
    preset: Size = Field(
        default="small", description="size: for a few CPU cores, a small model on a GPU, or a GPU's full load"
    )
    dataset: Path | None = Field(
        default=None,
        description="take the prompts from this file instead: JSON lines of prompts, ShareGPT's form or Spec-Bench's",
    )
    conversations: int | None = Field(default=None, ge=1, le=1_000_000, description="number of conversations")
    turns: int | None = Field(default=None, ge=1, le=1000, description="turns of each conversation")
    shared_prefix: int | None = Field(
        default=None, ge=0, le=MAX_LENGTH, description="tokens that all conversations begin with"
    )
    prompt_len: str | None = Field(default=None, description=f"new tokens of a turn: {FORMS}")
    tool_len: str | None = Field(default=None, description="new tokens of the turns after the first")
    output_len: str | None = Field(default=None, description="tokens of an answer; of a dataset, one number")
    arrivals: Literal["poisson", "uniform", "burst", "closed"] | None = Field(
        default=None, description="when conversations begin; closed: at once, as --max-concurrent admits them"
    )
    rate: float | None = Field(default=None, gt=0, le=MAX_RATE, description="conversations a second")
    max_concurrent: int | None = Field(default=None, ge=1, le=100_000, description="most conversations in flight")
    think: float | None = Field(default=None, ge=0, le=3600, description="seconds between an answer and the next turn")
    prompts: Form | None = Field(
        default=None, description="form of prompts; tokens over gRPC and in this process, text over HTTP, where unset"
    )
    ignore_eos: bool | None = Field(
        default=None, description="always generate to the full length; unless the prompts are a dataset's, where unset"
    )
    temperature: float = Field(default=0.0, ge=0, le=100, description="0 is greedy")
    seed: int = Field(default=0, ge=0, le=2**32, description="of prompts, lengths and arrivals")
    repeats: int = Field(default=1, ge=1, le=1000, description="runs of the load; several show its noise")
    warm_up: int = Field(default=2, ge=0, le=1000, description="requests before the measurement")
    ttft_limit: float = Field(
        default=1.0, gt=0, allow_inf_nan=False, description="goodput: longest time to the first token"
    )
    tpot_limit: float = Field(
        default=0.05, gt=0, allow_inf_nan=False, description="goodput: longest mean time per later token"
    )
    e2e_limit: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="goodput: longest time to the end"
    )

    @field_validator("prompt_len", "tool_len", "output_len")
    @classmethod
    def _lengths(cls, text: str | None) -> str | None:
        return None if text is None else str(Lengths.parse(text))

    @field_validator("workload")
    @classmethod
    def _known(cls, name: str) -> str:
        return find_workload(name, "small").name

    @model_validator(mode="after")
    def _of_datasets(self) -> LoadConfig:
        if self.dataset is not None:
            for name in ("prompt_len", "tool_len", "shared_prefix"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name}: the prompts are the dataset's")
            if self.prompts == "tokens":
                raise ValueError("prompts: a dataset has texts; 'tokens' is for drawn prompts")
            if self.output_len is not None and not self.output_len.isdecimal():
                raise ValueError("output_len: one number, for a dataset")
        if self.arrivals == "closed" and self.rate is not None:
            raise ValueError("rate: a closed loop has none")
        if self._turns == 1:
            for name in ("tool_len", "think"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name}: needs two turns or more")
        return self

    @property
    def _turns(self) -> int | None:
        """The most turns of a conversation; None where the dataset says it."""
        return self.turns if self.dataset is not None else self.resolved().turns

    @property
    def ignores_eos(self) -> bool:
        """Whether answers go on after end-of-sequence."""
        return self.dataset is None if self.ignore_eos is None else self.ignore_eos

    def resolved(self) -> Workload:
        """The workload with the options that replace its own."""
        workload = find_workload(self.workload, self.preset)
        changes: dict[str, object] = {}
        for option, field in (
            ("conversations", "conversations"),
            ("turns", "turns"),
            ("shared_prefix", "shared_prefix"),
            ("arrivals", "arrivals"),
            ("rate", "rate"),
            ("max_concurrent", "max_concurrent"),
            ("think", "think_s"),
        ):
            if (value := getattr(self, option)) is not None:
                changes[field] = value
        if self.prompt_len is not None:
            changes |= {"prompt": Lengths.parse(self.prompt_len), "long": None}
        if self.tool_len is not None:
            changes["later"] = Lengths.parse(self.tool_len)
        if self.output_len is not None:
            changes["output"] = Lengths.parse(self.output_len)
        if self.rate is not None and self.arrivals is None and workload.arrivals == "closed":
            changes["arrivals"] = "poisson"
        if workload.arrivals == "closed" and changes.get("arrivals", "closed") != "closed":
            # The workload's limit is the number of clients of its closed loop. Conversations that arrive have none.
            changes["max_concurrent"] = self.max_concurrent
        return replace(workload, **changes)  # type: ignore[arg-type]

    def draw(self, workload: Workload, vocab_size: int, run: int) -> Sequence[Conversation]:
        """The conversations of ``workload``, or of the dataset at its arrivals.

        Each run draws its own: a cache does not know the prompts of the one before. A whole dataset is always the same.

        Raises:
            DatasetError: the dataset cannot be read, has another form, or too few conversations.
        """
        seed = self.seed + 7919 * run
        if self.dataset is None:
            return workload.draw(vocab_size, seed)
        output_len = None if self.output_len is None else int(self.output_len)
        turns = read_dataset(self.dataset, self.conversations, self.turns, output_len, seed)
        return dataset_workload(turns, workload)
