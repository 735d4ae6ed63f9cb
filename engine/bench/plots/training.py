"""``plot_training``: the loss of a training and the acceptance lengths of its checkpoints, by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from draftline.engine.bench.plots.canvas import COLOURS, canvas
from draftline.engine.bench.report.fields import FINITE, NUMBER, OBJECT, Field
from draftline.engine.errors import UsageError

Line = Mapping[str, Any]

_FIELDS = (
    Field(("step",), FINITE, needed=True),
    Field(("loss",), NUMBER, needed=True),
    Field(("acceptance",), OBJECT, needed=True),
)


def fields(line: Line) -> Sequence[Field]:
    """The fields of a line that the plot uses."""
    acceptance = line.get("acceptance")
    kinds = acceptance if isinstance(acceptance, Mapping) else {}
    return (*_FIELDS, *(Field(("acceptance", str(kind)), FINITE, needed=True) for kind in kinds))


def plot_training(lines: Sequence[Line], path: Path) -> None:
    """Plot one training. The checkpoint that its folder has at the end, the best one, is marked.

    Raises:
        UsageError: the lines are of several trainings: their steps do not ascend.
    """
    steps = [line["step"] for line in lines]
    if any(before >= after for before, after in pairwise(steps)):
        raise UsageError("the results are of several trainings: plot one at a time")
    scores = [sum(line["acceptance"].values()) for line in lines]
    best = scores.index(max(scores))
    with canvas(path, 2, 9, 3.2) as (loss, acceptance):
        loss.plot(steps, [float(line["loss"]) for line in lines], color=COLOURS[0], marker=".")
        loss.set(title="loss", xlabel="step", ylim=(0, None))
        for kind, colour in zip(_kinds(lines), COLOURS * len(lines), strict=False):
            found = [line["acceptance"].get(kind, float("nan")) for line in lines]
            acceptance.plot(steps, found, color=colour, marker=".", label=kind)
        acceptance.axvline(steps[best], color="black", linewidth=0.8, linestyle="--", label="kept")
        acceptance.set(title="acceptance length on held-out prompts", xlabel="step", ylim=(1, None))
        acceptance.legend(fontsize="small", frameon=False)


def _kinds(lines: Sequence[Line]) -> list[str]:
    """The kinds of held-out prompts, in order of appearance."""
    return list(dict.fromkeys(kind for line in lines for kind in line["acceptance"]))
