"""Plot the speed-up of speculative decoding by concurrency.

    python benchmarks/drafts/plot.py benchmarks/results/h200-speculation.jsonl --commit 8a467f1 --output gains.svg

One line for each model, drafter, dataset and choice of draft lengths. Of several results for one point, the last in the
file counts. A file of results has those of many commits.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from draftline.engine.bench.plots.canvas import canvas


def label(result: Mapping[str, Any]) -> str:
    """The label of the line that a result belongs to."""
    drafter = result["draft_model"] or result["drafter"]
    if quantization := result["options"].get("draft_quantization"):
        drafter = f"{drafter} in {quantization}"
    parts = [f"{result['model']} + {drafter}", result["dataset"]]
    if result["synthetic"]:
        chance = result["options"]["synthetic_acceptance"]
        parts[1] = "SYNTHETIC acceptance" if chance else "drafts never accepted (SYNTHETIC)"
    for name in ("category", "temperature"):
        if result.get(name):
            parts.append(f"{name} {result[name]}")
    if result["options"].get("draft_length") == "fixed":
        parts.append("fixed")
    return ", ".join(parts)


def series(results: Iterable[Mapping[str, Any]]) -> dict[str, dict[int, float]]:
    """By label, the speed-up at each concurrency."""
    lines: dict[str, dict[int, float]] = defaultdict(dict)
    for result in results:
        if result.get("interrupted"):  # it may have few of the questions
            continue
        lines[label(result)][result["concurrency"]] = result["speedup"]
    return dict(lines)


def plot(results: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Write the plot as an SVG file."""
    with canvas(path, 1, 10.5, 3.8) as (axes,):
        axes.axhline(1, color="gray", linewidth=0.8)
        points: set[int] = set()
        for name, line in series(results).items():
            axes.plot(*zip(*sorted(line.items()), strict=True), marker="o", label=name)
            points |= line.keys()
        axes.set(xlabel="concurrency", ylabel="speed-up over plain decoding", ylim=(0, None))
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted(points), labels=map(str, sorted(points)))
        axes.figure.legend(fontsize="small", loc="outside right upper")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="JSON lines of benchmarks/speculation.py")
    parser.add_argument(
        "--commit",
        action="append",
        default=[],
        help="only results of this commit, as they name it (repeatable; default: all)",
    )
    parser.add_argument("--output", type=Path, required=True, help="the SVG file to write")
    arguments = parser.parse_args(argv)
    results = [json.loads(line) for line in arguments.results.read_text().splitlines()]
    if arguments.commit:
        results = [result for result in results if result["commit"] in arguments.commit]
    if not results:
        parser.error(f"{arguments.results} has no result of {' or '.join(arguments.commit)}")
    plot(results, arguments.output)


if __name__ == "__main__":
    main()
