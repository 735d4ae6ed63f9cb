"""``draftline train-draft``: make a small draft model for a target, from nothing but the target."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from draftline.engine.config import EngineConfig
from draftline.engine.training.config import TrainDraftConfig


def train_draft(
    output: Annotated[Path, typer.Argument(help="the folder to write the draft model to")],
    *,
    training: TrainDraftConfig,
    engine: EngineConfig,
) -> None:
    """Train a small draft model for `--model`, on answers that the model itself writes.

    The draft has a few of the model's layers and shares its embeddings. Of several checkpoints the one with the
    longest acceptance on held-out prompts is kept, and compared with n-gram lookup. Made for a GPU: a model of 135
    million parameters takes some minutes there.

    **Examples**

    - `draftline train-draft ./smollm2-draft`
    - `draftline train-draft ./draft --model ./Qwen3-0.6B --layers 0 --layers 13 --layers 27 --samples answers.npz`
    """
    # Imported here, since it brings torch and the engine.
    from draftline.engine.training.train import train_draft_model

    started = time.monotonic()

    def report(line: str) -> None:
        typer.echo(f"[{time.monotonic() - started:6.1f} s] {line}", err=True)

    measured = train_draft_model(output, training, engine, report)
    size = (output / "model.safetensors").stat().st_size
    report(f"{output}: {size / 1e6:.1f} MB of weights")
    typer.echo(f"On held-out prompts, {training.measured_drafts} drafts a verify:")
    for drafter, by_kind in measured.items():
        for kind, found in by_kind.items():
            rates = " ".join(f"{rate:.0%}" for rate in found.rates)
            typer.echo(f"{drafter:12} {kind:8} {found.length:.3f} tokens a verify; accepted by position {rates}")
