"""``plot_memory``: what weights, graphs, activations and cache take by batch size, as stacked bars for each model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftline.engine.bench.plots.canvas import COLOURS, canvas
from draftline.engine.bench.report.fields import FINITE, TEXT, Field

Line = Mapping[str, Any]

_USES = ("weights", "graphs", "activations", "cache")

FIELDS = (
    Field(("model",), TEXT, needed=True),
    *(
        Field((name,), FINITE, needed=True)
        for name in ("rows", "running", "preemptions", "prompt_len", "total", "cache_free", *_USES)
    ),
)
"""The fields of a line that the plot uses."""

_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"))


def plot_memory(lines: Sequence[Line], path: Path) -> None:
    """Plot each model beside the others. The dashed line is what the engine has reserved.

    The last bar may be hatched: a sequence had to wait, or another to give its blocks back. Of several lines for one
    batch size of a model, the last counts.
    """
    by_model: dict[str, dict[int, Line]] = {}
    for line in lines:
        by_model.setdefault(line["model"], {})[line["rows"]] = line
    with canvas(path, len(by_model), 1.5 + 4.2 * len(by_model), 3.6) as panels:
        for axes, (model, sizes) in zip(panels, by_model.items(), strict=True):
            found = [sizes[rows] for rows in sorted(sizes)]
            reserved = max(line["total"] + line["cache_free"] for line in found)
            unit, named = next((each for each in _UNITS if reserved >= each[0]), _UNITS[-1])
            columns = range(len(found))
            bottom = [0.0] * len(found)
            for use, colour in zip(_USES, COLOURS[3::-1], strict=True):
                heights = [line[use] / unit for line in found]
                hatches = ["//" if _is_beyond(line) else "" for line in found]
                axes.bar(
                    columns,
                    heights,
                    0.8,
                    bottom,
                    color=colour,
                    label=use,
                    hatch=hatches,
                    edgecolor="white",
                    linewidth=0,
                )
                bottom = [below + height for below, height in zip(bottom, heights, strict=True)]
            axes.axhline(reserved / unit, color="black", linewidth=0.8, linestyle="--", label="reserved")
            axes.set_xticks(columns, [f"{line['rows']:,}" for line in found], fontsize="small")
            prompt = found[-1]["prompt_len"]
            axes.set(
                title=model, xlabel=f"sequences of {prompt:,} tokens", ylabel=named, ylim=(0, 1.08 * reserved / unit)
            )
        handles, labels = panels[0].get_legend_handles_labels()
        panels[0].legend(
            handles[::-1], labels[::-1], fontsize="small", frameon=False, loc="upper left", bbox_to_anchor=(0, 0.93)
        )


def _is_beyond(line: Line) -> bool:
    return bool(line["running"] < line["rows"] or line["preemptions"])
