"""Compare throughput results with those of an earlier commit, as a Markdown table.

    python benchmarks/throughput.py --shape qwen3-0.6b --output new.jsonl
    python benchmarks/regression.py release.jsonl new.jsonl

Results are compared if engine, model, weights, dtype, options and workload are the same. Of several in one file, the last
counts. Lines of other benchmarks are left out, and so are those of interrupted runs. The exit status is 1 if a speed has fallen by more than --tolerance, or if nothing can be compared. Only compare
files of one machine; the last line of the output names what was measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plot import speed

Results = Mapping[tuple[str, ...], Mapping[str, Any]]
"""Lines of throughput.py, by what they measure."""


@dataclass(frozen=True, slots=True)
class Change:
    """One measurement before and after.

    Attributes:
        model: the checkpoint or shape.
        weights: the format of the weights.
        options: the engine's options, as JSON.
        workload: the name of the workload.
        before: its earlier speed in tokens/s.
        after: its speed now.
    """

    model: str
    weights: str
    options: str
    workload: str
    before: float
    after: float

    @property
    def ratio(self) -> float:
        """The speed now, relative to the earlier one."""
        return self.after / self.before

    def __str__(self) -> str:
        return f"{self.model}, {self.weights}, {self.workload}: {self.ratio - 1:+.1%}"


def read(path: Path) -> Results:
    """The results of a file.

    Raises:
        ValueError: a line is no result.
    """
    results: dict[tuple[str, ...], Mapping[str, Any]] = {}
    for number, text in enumerate(path.read_text().splitlines(), 1):
        try:
            line = json.loads(text)
            if "prompt_tokens_per_s" not in line or line.get("interrupted"):
                continue
            options = json.dumps(line["options"], sort_keys=True)
            key = (line["engine"], line["model"], line["weights"], line["dtype"], options, line["workload"])
            speed(line)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}:{number}: no result: {error!r}") from None
        results[key] = line
    return results


def changes(before: Results, after: Results) -> list[Change]:
    """The measurements that both have, in the order of ``after``."""
    return [
        Change(model, weights, options, workload, speed(before[key]), speed(line))
        for key, line in after.items()
        if key in before
        for _, model, weights, _, options, workload in [key]
    ]


def markdown(found: Sequence[Change], tolerance: float) -> str:
    """A table of tokens/s. Speeds that have fallen by more than ``tolerance`` are bold."""
    several_options = len({change.options for change in found}) > 1
    names = ["model", "weights", *(["options"] if several_options else []), "workload"]
    lines = ["| " + " | ".join([*names, "before", "after", "change"]) + " |", "|---" * len(names) + "|---:" * 3 + "|"]
    for change in found:
        cells = [change.model, change.weights, *([f"`{change.options}`"] if several_options else [])]
        percent = f"{change.ratio - 1:+.1%}"
        percent = f"**{percent}**" if change.ratio < 1 - tolerance else percent
        cells += [f"`{change.workload}`", f"{change.before:,.0f}", f"{change.after:,.0f}", percent]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def provenance(results: Results) -> str:
    """The commits, days and machines of results."""
    lines = results.values()
    return "; ".join(
        dict.fromkeys(f"commit {line['commit']}, {line['date'][:10]}, {line['machine']}" for line in lines)
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="JSON lines of the earlier commit")
    parser.add_argument("after", type=Path, help="JSON lines of this one")
    parser.add_argument(
        "--tolerance", type=float, default=0.03, help="the share that a speed may fall by (default: 0.03)"
    )
    arguments = parser.parse_args(argv)
    try:
        before, after = read(arguments.before), read(arguments.after)
    except (OSError, ValueError) as error:
        raise SystemExit(str(error)) from None
    found = changes(before, after)
    if not found:
        raise SystemExit(f"{arguments.before} and {arguments.after} have no measurement in common")
    print(f"{markdown(found, arguments.tolerance)}\n\nBefore: {provenance(before)}. After: {provenance(after)}.")
    slower = [change for change in found if change.ratio < 1 - arguments.tolerance]
    for change in slower:
        print(f"slower: {change}", file=sys.stderr)
    raise SystemExit(1 if slower else 0)


if __name__ == "__main__":
    main()
