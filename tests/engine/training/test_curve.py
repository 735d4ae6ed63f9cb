"""The curve of a training: which checkpoint is the best, and a file that can be plotted."""

from __future__ import annotations

from pathlib import Path

from draftline.engine.bench.plots.choose import plots_of, plotted_fields
from draftline.engine.bench.report.results import read_results
from draftline.engine.training.curve import CURVE, Curve
from draftline.spec.train_draft.acceptance import Acceptance
from draftline.spec.train_draft.distill import TrainingProgress


def test_a_curve_that_an_earlier_version_began_is_plotted_whole(tmp_path: Path) -> None:
    curve = Curve([{"step": 1, "steps": 9, "loss": 6.0, "acceptance": {"general": 1.5}}])
    assert not curve.add(TrainingProgress(step=5, steps=9, loss=4.0, ended=False), {"general": Acceptance(2, 3, (1,))})
    assert curve.add(TrainingProgress(step=9, steps=9, loss=3.0, ended=True), {"general": Acceptance(2, 4, (2,))})
    curve.write(tmp_path)
    lines = read_results(tmp_path / CURVE, plotted_fields)
    assert [line["step"] for line in lines] == [1, 5, 9]
    plots_of(lines)["training"](tmp_path / "curve.svg")
    assert (tmp_path / "curve.svg").exists()
