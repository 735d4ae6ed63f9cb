"""``plot_turns``: the time to the first token and the cache hits, by turn of a conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftline.engine.bench.plots.canvas import COLOURS, PERCENTILES, canvas, name_percentiles
from draftline.engine.bench.report.fields import EACH, FINITE, TEXT, Field

Line = Mapping[str, Any]

FIELDS = (
    *(Field((name,), TEXT, needed=True) for name in ("engine", "model", "workload")),
    Field(("preset",), TEXT),
    *(Field(("ttft_ms_by_turn", EACH, name), FINITE) for name in PERCENTILES),
    Field(("cache_hit_rate_by_turn", EACH), FINITE),
)
"""The fields of a line that the plot uses."""


def has_turns(line: Line) -> bool:
    """Whether a load's conversations have several turns."""
    return bool(line.get("ttft_ms_by_turn"))


def plot_turns(lines: Sequence[Line], path: Path) -> None:
    """Plot the loads whose conversations have several turns. Of repeated runs the last counts."""
    last = {
        (line["engine"], line["model"], line["workload"], line.get("preset")): line for line in lines if has_turns(line)
    }
    engines = len({engine for engine, _, _, _ in last}) > 1
    models = len({model for _, model, _, _ in last}) > 1
    most = max(len(line["ttft_ms_by_turn"]) for line in last.values())
    with canvas(path, 2, 9, 3.2) as (first, hits):
        for number, ((engine, model, workload, _), line) in enumerate(last.items()):
            name = ", ".join([*([engine] if engines else []), *([model] if models else []), workload])
            colour = COLOURS[number % len(COLOURS)]
            for percentile, style in PERCENTILES.items():
                times = [None if turn is None else turn.get(percentile) for turn in line["ttft_ms_by_turn"]]
                _curve(first, times, style, colour, name)
            shares = [None if share is None else 100 * share for share in line.get("cache_hit_rate_by_turn") or ()]
            _curve(hits, shares, "-", colour, name)
        first.set(title="time to the first token", ylabel="ms")
        hits.set(title="cache hits", ylabel="% of prompt tokens")
        for axes in (first, hits):
            top = 100 if axes is hits else None
            axes.set(xlabel="turn", ylim=(0, top), xticks=range(1, most + 1))
        name_percentiles(first)
        if hits.lines:
            hits.legend(fontsize="small", frameon=False)


def _curve(axes: Any, values: Sequence[float | None], style: str, colour: str, name: str) -> None:
    """A curve over the turns whose value is known; nothing where none is."""
    known = [(turn, value) for turn, value in enumerate(values, 1) if value is not None]
    if known:
        axes.plot(*zip(*known, strict=True), style, marker=".", color=colour, label=name)
