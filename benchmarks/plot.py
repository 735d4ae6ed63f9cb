"""Plot throughput results compared with those of peers, on the same workloads and the same kind of machine.

    python benchmarks/plot.py benchmarks/results/h200.jsonl --output docs/throughput.svg

The length of a bar is the speed of an engine relative to the first peer in --peers; the label at its end is in
tokens/s. Of several results for one engine, model and workload, the last in the file counts. The same numbers are
printed as a Markdown table.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftline.engine.bench.plots.canvas import COLOURS, canvas

_PEERS = Path(__file__).parent / "results" / "peers.jsonl"
_COLOURS = (COLOURS[0], *COLOURS[4:])


@dataclass(frozen=True, slots=True)
class Comparison:
    """The key of comparable results: a model and a workload."""

    model: str
    workload: str


def speed(line: Mapping[str, Any]) -> float:
    """The tokens/s of a result: generated tokens, or prompt tokens if the workload only processes prompts."""
    return float(line["prompt_tokens_per_s" if line["workload"] == "prefill" else "tokens_per_s"])


def read(path: Path) -> dict[Comparison, dict[str, float]]:
    """The speed of each engine in tokens/s, by model and workload in the order of the file."""
    cases: dict[Comparison, dict[str, float]] = {}
    for text in path.read_text().splitlines():
        line = json.loads(text)
        cases.setdefault(Comparison(line["model"], line["workload"]), {})[line["engine"]] = speed(line)
    return cases


def join(
    ours: dict[Comparison, dict[str, float]], peers: dict[Comparison, dict[str, float]]
) -> dict[Comparison, dict[str, float]]:
    """The results that both have, with the speeds of all engines."""
    return {case: {**speeds, **peers[case]} for case, speeds in ours.items() if case in peers}


def markdown(cases: dict[Comparison, dict[str, float]], engines: Sequence[str]) -> str:
    """A table of tokens/s, with the ratio of the first engine to the second."""
    head = ["model", "workload", *engines, f"{engines[0]} / {engines[1]}"]
    lines = ["| " + " | ".join(head) + " |", "|---|---|" + "---:|" * (len(engines) + 1)]
    for case, speeds in cases.items():
        cells = [f"{speeds[engine]:,.0f}" if engine in speeds else "" for engine in engines]
        ratio = f"{speeds[engines[0]] / speeds[engines[1]]:.2f}×"
        lines.append("| " + " | ".join([case.model, f"`{case.workload}`", *cells, ratio]) + " |")
    return "\n".join(lines)


def draw(cases: dict[Comparison, dict[str, float]], engines: Sequence[str], output: Path) -> None:
    """Draw one group of bars for each model and workload, relative to the second engine."""
    height = 0.8 / len(engines)
    with canvas(output, 1, 8, 0.55 * len(cases) + 0.8) as (axes,):
        for index, engine in enumerate(engines):
            with_engine = [(row, speeds) for row, speeds in enumerate(cases.values()) if engine in speeds]
            rows = [row + (index - (len(engines) - 1) / 2) * height for row, _ in with_engine]
            lengths = [speeds[engine] / speeds[engines[1]] for _, speeds in with_engine]
            bars = axes.barh(rows, lengths, height, label=engine, color=_COLOURS[index % len(_COLOURS)])
            axes.bar_label(bars, [f"{speeds[engine]:,.0f}" for _, speeds in with_engine], padding=3, fontsize=7)
        axes.set_yticks(range(len(cases)), [f"{case.model}  {case.workload}" for case in cases])
        axes.invert_yaxis()
        axes.set_xlabel(f"tokens/s, relative to {engines[1]}")
        axes.legend(loc="lower right", frameon=False)


def _ordered(cases: Iterable[dict[str, float]], first: str) -> list[str]:
    """The engines in order of appearance, but ``first`` first."""
    return list(dict.fromkeys([first, *(engine for speeds in cases for engine in speeds)]))


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="JSON lines of benchmarks/throughput.py")
    parser.add_argument(
        "--peers",
        type=Path,
        default=_PEERS,
        help=f"JSON lines of the peers (default: benchmarks/results/{_PEERS.name})",
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
