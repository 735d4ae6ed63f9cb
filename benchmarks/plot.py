"""Draws throughput results beside what peers reached on the same workloads and the same kind of machine.

    python benchmarks/plot.py benchmarks/results/h200.jsonl --output docs/throughput.svg

A bar is as long as an engine is fast relative to the first peer in --peers that has run the workload; its tokens a second
are written at its end. Of several results for one engine, model and workload, the last in the file counts. Also prints
the same as a Markdown table.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

_PEERS = Path(__file__).parent / "results" / "peers.jsonl"
_COLOURS = ("#1b6ca8", "#9aa5b1", "#cfd6dd")


@dataclass(frozen=True, slots=True)
class Case:
    """What was run: a model on a workload."""

    model: str
    workload: str


def speed(line: dict[str, Any]) -> float:
    """A result's tokens a second: generated ones, but where a workload only processes prompts, these."""
    return float(line["prompt_tokens_per_s" if line["workload"] == "prefill" else "tokens_per_s"])


def read(path: Path) -> dict[Case, dict[str, float]]:
    """Each engine's speed, by case in the file's order."""
    cases: dict[Case, dict[str, float]] = {}
    for text in path.read_text().splitlines():
        line = json.loads(text)
        cases.setdefault(Case(line["model"], line["workload"]), {})[line["engine"]] = speed(line)
    return cases


def join(ours: dict[Case, dict[str, float]], peers: dict[Case, dict[str, float]]) -> dict[Case, dict[str, float]]:
    """The cases that we ran and a peer has, with the speeds of all."""
    return {case: {**speeds, **peers[case]} for case, speeds in ours.items() if case in peers}


def markdown(cases: dict[Case, dict[str, float]], engines: Sequence[str]) -> str:
    """A table of tokens a second, with the ratio of the first engine to the second."""
    head = ["model", "workload", *engines, f"{engines[0]} / {engines[1]}"]
    lines = ["| " + " | ".join(head) + " |", "|---|---|" + "---:|" * (len(engines) + 1)]
    for case, speeds in cases.items():
        cells = [f"{speeds[engine]:,.0f}" if engine in speeds else "" for engine in engines]
        ratio = f"{speeds[engines[0]] / speeds[engines[1]]:.2f}×"
        lines.append("| " + " | ".join([case.model, f"`{case.workload}`", *cells, ratio]) + " |")
    return "\n".join(lines)


def draw(cases: dict[Case, dict[str, float]], engines: Sequence[str], output: Path) -> None:
    """One group of bars a case, relative to the second engine."""
    height = 0.8 / len(engines)
    figure, axes = plt.subplots(figsize=(8, 0.55 * len(cases) + 0.8), layout="constrained")
    for place, engine in enumerate(engines):
        with_engine = [(row, speeds) for row, speeds in enumerate(cases.values()) if engine in speeds]
        rows = [row + (place - (len(engines) - 1) / 2) * height for row, _ in with_engine]
        lengths = [speeds[engine] / speeds[engines[1]] for _, speeds in with_engine]
        bars = axes.barh(rows, lengths, height, label=engine, color=_COLOURS[place % len(_COLOURS)])
        axes.bar_label(bars, [f"{speeds[engine]:,.0f}" for _, speeds in with_engine], padding=3, fontsize=7)
    axes.set_yticks(range(len(cases)), [f"{case.model}  {case.workload}" for case in cases])
    axes.invert_yaxis()
    axes.set_xlabel(f"tokens a second, relative to {engines[1]}")
    axes.legend(loc="lower right", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(output, metadata={"Date": None})


def _ordered(cases: Iterable[dict[str, float]], first: str) -> list[str]:
    """The engines as they come up, ``first`` before the others."""
    return list(dict.fromkeys([first, *(engine for speeds in cases for engine in speeds)]))


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="JSON lines of benchmarks/throughput.py")
    parser.add_argument(
        "--peers", type=Path, default=_PEERS, help=f"theirs (default: {_PEERS.name} beside the results)"
    )
    parser.add_argument("--output", type=Path, required=True, help="the SVG file to write")
    arguments = parser.parse_args(argv)
    cases = join(read(arguments.results), read(arguments.peers))
    if not cases:
        parser.error(f"{arguments.results} and {arguments.peers} have no model and workload in common")
    engines = _ordered(cases.values(), "draftline")
    draw(cases, engines, arguments.output)
    print(markdown(cases, engines))


if __name__ == "__main__":
    main()
