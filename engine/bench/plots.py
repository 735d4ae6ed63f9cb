"""Plots of results as SVG files, by matplotlib, which is optional."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from draftline.engine.errors import MissingExtraError


def need_matplotlib() -> None:
    """Check that matplotlib is there, before a long measurement.

    Raises:
        MissingExtraError: it is not.
    """
    try:
        import matplotlib as matplotlib
    except ImportError as error:
        raise MissingExtraError("--plot", "bench") from error


def plot_sweep(lines: Sequence[Mapping[str, Any]], axis: str, path: Path) -> None:
    """Plot throughput, the time to the first token and the gaps between tokens over one field of the lines.

    Each engine has its own curves. Repeated runs count with their median.
    """
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    matplotlib.rcParams["svg.hashsalt"] = "draftline"  # the same file from the same numbers
    by_engine: dict[str, dict[Any, list[Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        by_engine[line["engine"]][line[axis]].append(line)
    figure, (speed, first, gaps) = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    for engine, points in by_engine.items():
        named = f"{engine}, " if len(by_engine) > 1 else ""
        values = list(points)
        rates = [median(line["tokens_per_s"] for line in points[value]) for value in values]
        speed.plot(values, rates, marker="o", label=engine)
        for axes, field in ((first, "ttft_ms"), (gaps, "inter_token_ms")):
            for percentile, style in (("p50", "-"), ("p99", ":")):
                times = [median(line[field][percentile] for line in points[value] if line[field]) for value in values]
                axes.plot(values, times, style, marker=".", label=f"{named}{percentile}")
    numeric = all(isinstance(line[axis], int | float) for line in lines)
    for axes, title, unit in (
        (speed, "throughput", "tokens/s"),
        (first, "time to the first token", "ms"),
        (gaps, "between tokens", "ms"),
    ):
        axes.set(title=title, xlabel=axis.replace("_", " "), ylabel=unit, ylim=(0, None))
        if numeric:
            axes.set_xscale("log", base=2)
            ticks = sorted({line[axis] for line in lines})
            axes.set_xticks(ticks, labels=[f"{tick:g}" for tick in ticks])
            axes.minorticks_off()
    for axes in (first, gaps) if len(by_engine) == 1 else (speed, first, gaps):
        axes.legend(fontsize="small", frameon=False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
