"""The table of an ablation, for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

_COLUMNS = (
    "optimization",
    "state",
    "tokens/s",
    "change",
    "TTFT p50 ms",
    "change",
    "memory MiB",
    "cache B/token",
    "equal",
)


def ablation_table(lines: Sequence[Mapping[str, Any]], left_out: Mapping[str, str]) -> Table:
    """A line for each variant.

    Changes within the rounds' spread, and those of one round, are in brackets; errors take a line's place.
    """
    table = Table(title=f"ablation, {lines[0]['workload']}", title_justify="left")
    for number, name in enumerate(_COLUMNS):
        table.add_column(name, justify="left" if number < 2 else "right", overflow="fold")
    for line in lines:
        if line["error"]:
            table.add_row(line["variant"], line["state"], f"[yellow]{line['error']}")
            continue
        change = f"{line['tokens_per_s_change']:+.1%}"
        table.add_row(
            line["variant"],
            line["state"],
            f"{line['tokens_per_s']:,.1f}",
            f"({change})" if line["within_noise"] else change,
            "–" if line["first_token_ms_p50"] is None else f"{line['first_token_ms_p50']:,.1f}",
            "–" if line["first_token_change"] is None else f"{line['first_token_change']:+.1%}",
            f"{line['fixed_bytes'] / (1 << 20):,.1f}",
            f"{line['cache_bytes_a_token']:,.0f}",
            f"{line['outputs_equal']} of {line['outputs']}",
            style="red" if line["failed"] else None,
        )
    for name, reason in left_out.items():
        table.add_row(name, "–", f"[dim]{reason}")
    table.caption = (
        "memory: weights, activations and graphs; (change): within the spread of the rounds, or one round only"
    )
    table.caption_justify = "left"
    return table
