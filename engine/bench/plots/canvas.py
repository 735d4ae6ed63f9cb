"""``canvas``: a figure with panels, which becomes an SVG file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from draftline.engine.errors import MissingExtraError, UsageError

COLOURS = ("#1b6ca8", "#d17a22", "#4c9a5b", "#9c5fb5", "#9aa5b1", "#cfd6dd")
"""In order of use; the last two are for what is beside the point."""


PERCENTILES = {"p50": "-", "p99": ":"}
"""The lines of the percentiles that are drawn."""


def name_percentiles(axes: Any) -> None:
    """A legend of the percentiles' lines, whatever their colours are."""
    lines = [axes.plot([], [], style, color="black", label=name)[0] for name, style in PERCENTILES.items()]
    axes.legend(handles=lines, fontsize="small", frameon=False)


def check_plot(path: Path, option: str = "--plot", made: Path | None = None) -> None:
    """Check that a plot can be drawn to ``path``, before a long measurement, which makes the folder ``made``.

    Raises:
        MissingExtraError: matplotlib is not installed.
        UsageError: the path is not an SVG file's, or its folder is missing.
    """
    try:
        import matplotlib as matplotlib
    except ImportError as error:
        raise MissingExtraError(option, "bench") from error
    if path.suffix != ".svg":
        raise UsageError(f"{option}: {path}: a plot is an SVG file, whose name ends in .svg")
    will_be = made is not None and path.parent.absolute() == made.absolute()
    if path.is_dir() or not (path.parent.is_dir() or will_be):
        problem = "is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise UsageError(f"{option}: {path}: {problem}")


@contextmanager
def canvas(path: Path, panels: int, width: float, height: float) -> Iterator[Sequence[Any]]:
    """Panels side by side, in a figure that is written at the end. The same numbers give the same file.

    Args:
        path: the SVG file.
        panels: how many.
        width: of the figure, in inches.
        height: of the figure, in inches.

    Raises:
        UsageError: the file cannot be written.
    """
    import matplotlib  # takes a second to load

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    matplotlib.rcParams["svg.hashsalt"] = "draftline"
    figure, axes = plt.subplots(1, panels, figsize=(width, height), layout="constrained", squeeze=False)
    try:
        for panel in axes[0]:
            panel.spines[["top", "right"]].set_visible(False)
        yield list(axes[0])
        try:
            figure.savefig(path, metadata={"Date": None})
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from error
    finally:
        plt.close(figure)
