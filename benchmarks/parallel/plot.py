"""Plot tokens/s by the number of GPUs that share a model.

    python benchmarks/parallel/plot.py benchmarks/results/h200-parallel.jsonl --output docs/scaling.svg

One panel for each model, one line for each workload and type of weights, with dots where each GPU more would count in full. Of several
results for one point, the last in the file counts; other lines of the file are left out.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from draftline.engine.bench.plots.canvas import COLOURS, canvas

Curves = dict[str, dict[int, float]]
"""By label, tokens/s at each number of GPUs."""


def curves(results: Iterable[Mapping[str, Any]]) -> dict[str, Curves]:
    """By model, the curves that have at least two points."""
    found: dict[str, Curves] = defaultdict(lambda: defaultdict(dict))
    for result in results:
        if "workload" in result and not result.get("interrupted"):
            gpus = result["options"].get("tensor_parallel_size", 1)
            found[result["model"]][f"{result['workload']}, {result['weights']}"][gpus] = result["tokens_per_s"]
    several = {model: {name: points for name, points in of.items() if len(points) > 1} for model, of in found.items()}
    return {model: of for model, of in several.items() if of}


def plot(models: Mapping[str, Curves], path: Path) -> None:
    """Write the plot as an SVG file."""
    with canvas(path, len(models), 5 * len(models), 3.6) as panels:
        for axes, (model, lines) in zip(panels, models.items(), strict=True):
            for colour, (name, line) in zip(COLOURS, sorted(lines.items()), strict=False):
                gpus, speeds = zip(*sorted(line.items()), strict=True)
                axes.plot(gpus, speeds, marker="o", color=colour, label=name)
                axes.plot(gpus, [speeds[0] * count / gpus[0] for count in gpus], ":", color=colour, linewidth=1)
                axes.annotate(f"{speeds[-1]:,.0f}", (gpus[-1], speeds[-1]), (6, -3), textcoords="offset points")
            points = sorted({count for line in lines.values() for count in line})
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xticks(points, labels=map(str, points))
            axes.margins(x=0.15)
            axes.set(title=model, xlabel="GPUs", ylabel="tokens/s")
            axes.legend(fontsize="small", frameon=False)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="JSON lines of benchmarks/throughput.py")
    parser.add_argument("--output", type=Path, required=True, help="the SVG file to write")
    arguments = parser.parse_args(argv)
    found = curves([json.loads(line) for line in arguments.results.read_text().splitlines()])
    if not found:
        parser.error(f"{arguments.results} has no workload with two numbers of GPUs")
    plot(found, arguments.output)


if __name__ == "__main__":
    main()
