"""``draftline bench ablate``: what each optimization is worth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
import uvloop

from draftline.engine.bench.ablation.run import Ablation
from draftline.engine.bench.ablation.tables import ablation_table
from draftline.engine.bench.ablation.variants import NAMES, Variant, variants
from draftline.engine.bench.contenders.shaped import SHAPE_HELP, shaped
from draftline.engine.bench.lines import ResultLines, result_lines
from draftline.engine.bench.load.config import LoadConfig
from draftline.engine.bench.plots.ablation import plot_ablation
from draftline.engine.bench.plots.canvas import check_plot
from draftline.engine.bench.provenance import conditions_of
from draftline.engine.cli.bench.load import progress_bar
from draftline.engine.cli.bench.output import OutputFile, PlotFile, console
from draftline.engine.cli.models import find_models
from draftline.engine.config import EngineConfig
from draftline.engine.errors import UsageError
from draftline.engine.process.startup import runs_on_gpu


def ablate(
    only: Annotated[
        str | None, typer.Option(metavar="NAME,NAME", help=f"measure these, of {', '.join(NAMES)}; all where unset")
    ] = None,
    shape: Annotated[str | None, typer.Option(metavar="NAME|FILE", help=SHAPE_HELP)] = None,
    output: OutputFile = None,
    plot: PlotFile = None,
    *,
    load: LoadConfig,
    engine: EngineConfig,
) -> None:
    """Switch each optimization off in turn, and all, under one load: speed, latency, memory, and equal outputs.

    The engine's options are the baseline. An optimization that they leave off, such as FP8, is switched on instead.
    Each variant is a server of its own, which is started and loaded over gRPC, one after the other.

    **Examples**

    - `draftline bench ablate --shape qwen3-0.6b --workload prefix_caching --preset medium`
    - `draftline bench ablate --only graphs,prefix-cache,drafts --repeats 3`
    """
    if load.dataset is not None or load.prompts not in (None, "tokens"):
        raise UsageError("--dataset and --prompts: an ablation compares the tokens of drawn prompts")
    if load.arrivals not in (None, "closed") or load.rate is not None:
        raise UsageError("--arrivals and --rate: in an ablation, all conversations are there at once")
    if plot is not None:
        check_plot(plot)
    with shaped(engine, shape) as made:
        find_models(made)
        chosen, left_out = variants(made, runs_on_gpu(made.device), only)
        with result_lines(output, conditions_of(made)) as lines:
            uvloop.run(_run(Ablation(made, load), chosen, {"model": shape or made.model}, lines))
        console().print(ablation_table(lines.written, left_out))
        if plot is not None:
            plot_ablation(lines.written, plot)


async def _run(ablation: Ablation, chosen: Sequence[Variant], common: dict[str, str], lines: ResultLines) -> None:
    shown = console()
    for variant in chosen:
        with progress_bar(shown, ablation.requests, f"{variant.name} {variant.state}".strip()) as advance:
            lines.write({**common, **await ablation.measure(variant, advance)})
