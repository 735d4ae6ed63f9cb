"""``draftline train-draft``: make a small draft model for a target, from the target alone."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from tqdm import tqdm

from draftline.engine.bench.plots.canvas import check_plot
from draftline.engine.bench.plots.choose import plotted_fields
from draftline.engine.bench.plots.training import plot_training
from draftline.engine.bench.report.results import read_results
from draftline.engine.cli.models import find_models
from draftline.engine.config import EngineConfig
from draftline.engine.errors import UsageError
from draftline.engine.training.config import TrainDraftConfig


def train_draft(
    output: Annotated[Path, typer.Argument(help="the folder for the draft model")],
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="plot losses and acceptance lengths to this file")
    ] = None,
    *,
    training: TrainDraftConfig,
    engine: EngineConfig,
) -> None:
    """Train a draft model or head on the model's own answers.

    The draft model has a few of the model's layers, and shares its embeddings. A head (`--kind eagle3`) has one layer,
    and reads the model's hidden states. A parallel head (`--kind parallel`) drafts all tokens in one pass. The
    checkpoint with the longest acceptance on held-out prompts is kept, and compared with n-gram lookup. The folder has
    losses and acceptance lengths in `curve.jsonl`, and `--plot` draws them. Training is made for a GPU: a model of 135
    million parameters takes some minutes there.

    **Examples**

    - `draftline train-draft ./smollm2-draft`
    - `draftline train-draft ./head --kind eagle3 --samples answers.npz --stop-after 600 --plot curve.svg`
    - `draftline train-draft ./draft --model ./Qwen3-0.6B --layers 0 --layers 13 --layers 27 --samples answers.npz`
    """
    if plot is not None:
        check_plot(plot, made=output)
    if engine.synthetic_acceptance is not None:
        raise UsageError("--synthetic-acceptance: changes the target's answers, from which the draft learns")
    find_models(engine)
    # Imported here, since it imports torch.
    from draftline.engine.training.curve import CURVE
    from draftline.engine.training.train import train_draft_model
    from draftline.engine.training.train_head import train_head

    started = time.monotonic()
    trainers = {"model": train_draft_model, "eagle3": train_head, "parallel": train_head}
    # A bar on terminals only.
    with tqdm(desc="training", unit=" steps", disable=None, leave=False) as bar:

        def report(line: str) -> None:
            bar.clear()
            typer.echo(f"[{time.monotonic() - started:6.1f} s] {line}", err=True)

        def on_step(step: int, steps: int) -> None:
            bar.total = steps
            bar.update(step - bar.n)

        try:
            measured = trainers[training.kind](output, training, engine, report, on_step)
        except OSError as error:
            if error.filename is None:
                raise
            raise UsageError(f"{error.filename}: cannot be written: {error.strerror}") from error
        size = (output / "model.safetensors").stat().st_size
        report(f"{output}: {size / 1e6:.1f} MB of weights")
    if plot is not None:
        plot_training(read_results(output / CURVE, plotted_fields), plot)
    typer.echo(f"On held-out prompts, with {training.measured_drafts} draft tokens per verification:")
    for drafter, by_kind in measured.items():
        for kind, found in by_kind.items():
            if not found.verifies:
                typer.echo(f"{drafter:12} {kind:8} not measured: no held-out answers of two tokens or more")
                continue
            rates = " ".join(f"{rate:.0%}" for rate in found.rates)
            typer.echo(
                f"{drafter:12} {kind:8} {found.length:.3f} tokens per verification; accepted by position {rates}"
            )
