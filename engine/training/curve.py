"""``Curve``: what a training has measured so far, point after point, and which of its checkpoints is the best."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from draftline.models.checkpoints.write_file import write_file
from draftline.spec.train_draft.acceptance import Acceptance
from draftline.spec.train_draft.distill import TrainingProgress

CURVE = "curve.jsonl"
"""The file in a training's folder: a JSON object a point, which ``draftline bench plot`` draws."""

Point = dict[str, Any]


class Curve:
    """The points of a training's curve.

    Attributes:
        points: each with the ``step`` of so many ``steps``, the mean ``loss`` since the point before, the
            ``acceptance`` length on held-out prompts by their kind, and what a trainer adds.
    """

    def __init__(self, points: Iterable[Point] = ()) -> None:
        """A curve that begins with ``points``."""
        self.points: list[Point] = list(points)

    def add(self, progress: TrainingProgress, measured: Mapping[str, Acceptance]) -> bool:
        """Add what was measured after a step.

        Returns:
            Whether these acceptance lengths together are longer than all before.
        """
        lengths = {kind: round(found.length, 4) for kind, found in measured.items()}
        best = max((sum(point["acceptance"].values()) for point in self.points), default=0.0)
        self.points.append(
            {
                "step": progress.step,
                "steps": progress.steps,
                "loss": progress.loss,
                "acceptance": lengths,
            }
        )
        return sum(lengths.values()) > best

    def write(self, folder: Path) -> None:
        """Write all points to the folder's file, each as a result of the benchmark ``training``.

        Raises:
            OSError: it cannot be written.
        """
        # Named here, not in the points: states of earlier versions have points without the name.
        lines = [json.dumps({"benchmark": "training"} | point) + "\n" for point in self.points]
        write_file(folder / CURVE, "".join(lines).encode())


def last_point(curve: Curve, *, kept: bool) -> str:
    """The newest point as a line for people."""
    point = curve.points[-1]
    lengths = ", ".join(f"{kind} {length:.3f}" for kind, length in point["acceptance"].items())
    line = f"step {point['step']} of {point['steps']}: loss {point['loss']:.4f}, acceptance length {lengths}"
    return line + ", kept" * kept
