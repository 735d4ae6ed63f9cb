"""``plot_ablation``: the speed and the time to the first token of each variant, relative to the baseline's, as bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftline.engine.bench.plots.canvas import COLOURS, canvas
from draftline.engine.bench.report.fields import BOOLEAN, FINITE, TEXT, Field

Line = Mapping[str, Any]

FIELDS = tuple(Field((name,), TEXT, needed=True) for name in ("model", "variant", "state"))
"""The fields of a line that the plot uses."""

MEASURED = (
    Field(("tokens_per_s",), FINITE, needed=True),
    Field(("tokens_per_s_change",), FINITE, needed=True),
    Field(("within_noise",), BOOLEAN, needed=True),
    Field(("first_token_change",), FINITE),
    Field(("first_token_ms_p50",), FINITE),
)
"""Those of a variant that could be measured."""

_PLAIN, _NOISE = COLOURS[0], COLOURS[4]


def plot_ablation(lines: Sequence[Line], path: Path) -> None:
    """Plot the variants that could be measured. A grey bar is within the spread of the rounds, or of one round.

    Each bar is relative to the baseline of its own run: a file may have several runs with different loads. Of several
    lines for one variant of a model, the last counts.
    """
    last = {_name(line, lines): line for line in lines if not line.get("error") and not _is_baseline(line)}
    rows = range(len(last))
    with canvas(path, 2, 10, 0.34 * len(last) + 1.0) as (speed, first):
        colours = [_NOISE if line["within_noise"] else _PLAIN for line in last.values()]
        shares = [100 * (1 + line["tokens_per_s_change"]) for line in last.values()]
        bars = speed.barh(rows, shares, color=colours)
        speeds = [f"{line['tokens_per_s']:,.0f}" for line in last.values()]
        on_white = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}  # over the line of the baseline
        speed.bar_label(bars, speeds, padding=3, fontsize=7, bbox=on_white)
        speed.set(title="tokens/s", xlabel="% of the baseline's", xlim=(0, 1.18 * max([100.0, *shares])))
        speed.axvline(100, color="black", linewidth=0.8)
        changes = [line.get("first_token_change") for line in last.values()]
        times = [1.0 if change is None else 1 + change for change in changes]
        bars = first.barh(rows, [time - 1 for time in times], left=1, color=colours)
        firsts = [line.get("first_token_ms_p50") for line in last.values()]
        labels = ["" if time is None else f"{time:,.0f} ms" for time in firsts]
        for row, time, label in zip(rows, times, labels, strict=True):
            first.annotate(label, (max(time, 1.0), row), (3, 0), textcoords="offset points", va="center", fontsize=7)
        first.set(title="time to the first token, p50", xlabel="× the baseline's", xscale="log")
        low, high = min([1.0, *times]), max([1.0, *times])
        ticks = [tick for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 1000) if 0.8 * low <= tick <= 1.2 * high]
        first.set_xticks(ticks, labels=[f"{tick:g}" for tick in ticks])
        first.minorticks_off()
        first.set_xlim(0.8 * low, 3.5 * high)
        first.axvline(1, color="black", linewidth=0.8)
        speed.set_yticks(rows, list(last))
        first.set_yticks([])
        for axes in (speed, first):
            axes.invert_yaxis()


def _is_baseline(line: Line) -> bool:
    return not line["state"]


def _name(line: Line, lines: Sequence[Line]) -> str:
    models = len({each["model"] for each in lines}) > 1
    return f"{line['model']}, " * models + f"{line['variant']}: {line['state']}"
