"""Tables of results, for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.table import Table

Line = Mapping[str, Any]


def milliseconds(times: Mapping[str, float] | None) -> str:
    """``p50 / p99`` of a line's times."""
    if times is None:
        return "–"
    return " / ".join(_number(times[name]) for name in ("p50", "p99"))


def percent(share: float | None) -> str:
    """A share as a percentage."""
    return "–" if share is None else f"{share:.0%}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _drafts(line: Line) -> str:
    drafts = line["drafts"]
    if not drafts or not drafts["drafted"]:
        return "–"
    return f"{drafts['accepted']:,} of {drafts['drafted']:,}"


def _errors(line: Line) -> str:
    return ", ".join(f"{count} {code}" for code, count in line["errors"].items()) or "0"


def _utilization(line: Line) -> str:
    use = line["utilization"] or {}
    return f"{percent(use.get('mfu'))} / {percent(use.get('bandwidth'))}"


_COLUMNS: Mapping[str, Callable[[Line], str]] = {
    "requests": lambda line: str(line["requests"]),
    "tokens/s": lambda line: _number(line["tokens_per_s"]),
    "TTFT ms": lambda line: milliseconds(line["ttft_ms"]),
    "inter-token ms": lambda line: milliseconds(line["inter_token_ms"]),
    "TPOT ms": lambda line: milliseconds(line["tpot_ms"]),
    "end to end ms": lambda line: milliseconds(line["e2e_ms"]),
    "goodput/s": lambda line: f"{line['goodput_per_s']:.2f} ({percent(line['good_share'])})",
    "cache hits": lambda line: percent(line["cache_hit_rate"]),
    "drafts": _drafts,
    "errors": _errors,
}


def load_table(lines: Sequence[Line], varied: Sequence[str]) -> Table:
    """The results of loads; ``varied`` names the fields that a sweep changes, which come first."""
    first = lines[0]
    where = f" on {first['device']}" if first["device"] else ""
    title = f"{first['model']}{where}, {first['workload']}, over {first['protocol']}"
    shown = Table(title=title, title_justify="left", caption="p50 / p99", caption_justify="left")
    engines = len({line["engine"] for line in lines}) > 1
    columns = dict(_COLUMNS)
    if any((line["utilization"] or {}).get("mfu") is not None for line in lines):
        columns["MFU / bandwidth"] = _utilization
    for name in (*(["engine"] if engines else []), *varied, *columns):
        shown.add_column(name.replace("_", " "), justify="right", overflow="fold")
    for line in lines:
        point = [str(line[name]) for name in (*(["engine"] if engines else []), *varied)]
        shown.add_row(*point, *(column(line) for column in columns.values()), style="red" if line["failed"] else None)
    return shown


def turns_table(line: Line) -> Table:
    """The time to the first token and the cache hits of each turn of a conversation."""
    shown = Table(title="by turn", title_justify="left")
    for name in ("turn", "TTFT ms", "cache hits"):
        shown.add_column(name, justify="right")
    for number, (times, hits) in enumerate(
        zip(line["ttft_ms_by_turn"], line["cache_hit_rate_by_turn"], strict=True), start=1
    ):
        shown.add_row(str(number), milliseconds(times), percent(hits))
    return shown
