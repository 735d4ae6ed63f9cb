"""``plot_sweep``: throughput, the time to the first token and the gaps between tokens, by load."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from draftline.engine.bench.load.axes import SWEPT_FIELDS, label_of
from draftline.engine.bench.plots.canvas import COLOURS, PERCENTILES, canvas, name_percentiles
from draftline.engine.bench.report.fields import FINITE, NUMBER_OR_TEXT, TEXT, Field

FIELDS = (
    Field(("engine",), TEXT, needed=True),
    Field(("model",), TEXT, needed=True),
    Field(("tokens_per_s",), FINITE, needed=True),
    *(Field((times, name), FINITE) for times in ("ttft_ms", "inter_token_ms") for name in PERCENTILES),
    *(Field((axis,), NUMBER_OR_TEXT) for axis in SWEPT_FIELDS),
)
"""The fields of a line that the plot uses."""


def plot_sweep(lines: Sequence[Mapping[str, Any]], axis: str, path: Path) -> None:
    """Plot throughput, the time to the first token and the gaps between tokens over one field of the lines.

    Each engine and model has its own curves. Repeated runs count with their median.
    """
    numeric = all(isinstance(line[axis], int | float) for line in lines)
    place = float if numeric else str  # matplotlib orders numbers or names, and no mixture
    curves: dict[tuple[str, str], dict[Any, list[Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        curves[line["engine"], line["model"]][place(line[axis])].append(line)
    engines, models = (len({key[part] for key in curves}) > 1 for part in (0, 1))
    with canvas(path, 3, 11, 3.2) as (speed, first, gaps):
        for number, ((engine, model), points) in enumerate(curves.items()):
            colour = COLOURS[number % len(COLOURS)]
            name = ", ".join([*([engine] if engines else []), *([model] if models else [])])
            values = list(points)
            rates = [median(line["tokens_per_s"] for line in points[value]) for value in values]
            speed.plot(values, rates, marker="o", color=colour, label=name)
            for axes, field in ((first, "ttft_ms"), (gaps, "inter_token_ms")):
                for percentile, style in PERCENTILES.items():
                    # All requests of a point may have failed, or have one token only.
                    times = {value: _known(points[value], field, percentile) for value in values}
                    known = {value: median(found) for value, found in times.items() if found}
                    axes.plot(list(known), list(known.values()), style, marker=".", color=colour)
        for axes, title, unit in (
            (speed, "throughput", "tokens/s"),
            (first, "time to the first token", "ms"),
            (gaps, "between tokens", "ms"),
        ):
            axes.set(title=title, xlabel=label_of(axis), ylabel=unit)
            if models:  # they differ by factors
                axes.set_yscale("log")
            else:
                axes.set_ylim(0, None)
            axes.yaxis.set_major_formatter("{x:,.5g}")
            if numeric:
                axes.set_xscale("log", base=2)
                ticks = sorted({line[axis] for line in lines})
                axes.set_xticks(ticks, labels=[f"{tick:g}" for tick in ticks])
                axes.minorticks_off()
        if len(curves) > 1:
            speed.legend(fontsize="small", frameon=False)
        name_percentiles(first)


def _known(lines: Sequence[Mapping[str, Any]], field: str, percentile: str) -> list[float]:
    """A percentile of the lines that have it."""
    times = [(line.get(field) or {}).get(percentile) for line in lines]
    return [time for time in times if time is not None]
