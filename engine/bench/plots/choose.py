"""``plots_of``: the plots that a file of results allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from draftline.engine.bench.load.axes import SWEPT_FIELDS
from draftline.engine.bench.plots import ablation, memory, sweep, training, turns
from draftline.engine.bench.plots.ablation import plot_ablation
from draftline.engine.bench.plots.memory import plot_memory
from draftline.engine.bench.plots.sweep import plot_sweep
from draftline.engine.bench.plots.training import plot_training
from draftline.engine.bench.plots.turns import has_turns, plot_turns
from draftline.engine.bench.report.fields import Field

Line = Mapping[str, Any]
Draw = Callable[[Path], None]
"""Draws into an SVG file."""

NAMES = ("load", "turns", "ablation", "memory", "training")


def plotted_fields(line: Line) -> Iterator[Field]:
    """The fields of a line that its plots use."""
    match line.get("benchmark"):
        case "load":
            yield from sweep.FIELDS
            if has_turns(line):
                yield from turns.FIELDS
        case "ablation":
            yield from ablation.FIELDS
            if not line.get("error"):
                yield from ablation.MEASURED
        case "memory":
            yield from memory.FIELDS
        case "training":
            yield from training.fields(line)


def plots_of(lines: Sequence[Line]) -> dict[str, Draw]:
    """The plots of these results, of `NAMES`, each with what draws it."""
    found: dict[str, Draw] = {}
    # What an interrupted run has measured is not that of its whole load.
    loads = [line for line in lines if line.get("benchmark") == "load" and not line.get("interrupted")]
    for axis in SWEPT_FIELDS:  # of a sweep over several, the first counts
        swept = [line for line in loads if line.get(axis) is not None]
        if len({line[axis] for line in swept}) > 1:
            found["load"] = partial(plot_sweep, swept, axis)
            break
    if any(map(has_turns, loads)):
        found["turns"] = partial(plot_turns, loads)
    if ablations := [line for line in lines if line.get("benchmark") == "ablation"]:
        found["ablation"] = partial(plot_ablation, ablations)
    if memories := [line for line in lines if line.get("benchmark") == "memory"]:
        found["memory"] = partial(plot_memory, memories)
    if trainings := [line for line in lines if line.get("benchmark") == "training"]:
        found["training"] = partial(plot_training, trainings)
    return found
