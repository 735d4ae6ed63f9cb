"""The screen of ``draftline top``: two snapshots of a server's metrics, and the changes between them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rich import box
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from draftline.v1 import admin_pb2 as pb

_Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A server's metrics at one moment.

    Attributes:
        at: the time, in seconds.
        samples: by metric, without the common prefix of the names, and labels.
    """

    at: float
    samples: Mapping[str, Mapping[_Labels, pb.Sample]]

    @staticmethod
    def of(metrics: Iterable[pb.Metric], at: float) -> Snapshot:
        """Make a snapshot of AdminService's response."""
        return Snapshot(
            at,
            {
                metric.name.removeprefix("draftline_"): {
                    tuple(sorted(sample.labels.items())): sample for sample in metric.samples
                }
                for metric in metrics
            },
        )

    def number(self, name: str, **labels: str) -> float:
        """Add up a metric's samples with these labels; 0 if there are none."""
        wanted = labels.items()
        return sum(s.number for key, s in self.samples.get(name, {}).items() if wanted <= dict(key).items())

    def labels(self, name: str) -> list[dict[str, str]]:
        """List the labels of a metric's samples."""
        return [dict(key) for key in self.samples.get(name, {})]

    def histogram(self, name: str) -> dict[float, float]:
        """Count the observations up to each bound, over all labels."""
        found: dict[float, float] = {}
        for sample in self.samples.get(name, {}).values():
            for bucket in sample.histogram.buckets:
                found[bucket.upper_bound] = found.get(bucket.upper_bound, 0) + bucket.cumulative_count
        return found


def quantile(counts: Mapping[float, float], share: float) -> float | None:
    """Estimate the value below which ``share`` of a histogram's observations lie, linear between its bounds.

    Returns:
        None without observations; the last finite bound where the value lies above it.
    """
    bounds = sorted(counts)
    if not bounds or not counts[bounds[-1]]:
        return None
    wanted, low, below = share * counts[bounds[-1]], 0.0, 0.0
    for bound in bounds:
        if counts[bound] >= wanted:
            if math.isinf(bound):
                return low
            inside = counts[bound] - below
            return low + (bound - low) * ((wanted - below) / inside if inside else 1.0)
        low, below = bound, counts[bound]
    return low


class _Change:
    """The change from one snapshot to the next; since the server's start where they are the same."""

    def __init__(self, before: Snapshot, now: Snapshot) -> None:
        self._before, self._now = before, now
        self._seconds = now.at - before.at

    def rate(self, name: str, **labels: str) -> float:
        grown = self._now.number(name, **labels) - self._before.number(name, **labels)
        return grown / self._seconds if self._seconds > 0 else 0.0

    def share(self, part: str, whole: str) -> float | None:
        """The ratio of two counters' changes; of their totals where the second did not change."""
        parts, wholes = (self._now.number(name) - self._before.number(name) for name in (part, whole))
        if wholes <= 0:
            parts, wholes = self._now.number(part), self._now.number(whole)
        return parts / wholes if wholes else None

    def quantiles(self, name: str) -> list[float | None]:
        after, before = self._now.histogram(name), self._before.histogram(name)
        recent = {bound: count - before.get(bound, 0) for bound, count in after.items()}
        counts = recent if any(recent.values()) else after
        return [quantile(counts, share) for share in (0.5, 0.95, 0.99)]


def view(server: str, before: Snapshot, now: Snapshot) -> RenderableType:
    """Render the whole screen."""
    change = _Change(before, now)
    models = ", ".join(f"{m['model']} on {m['device']}, {m['dtype']}" for m in now.labels("model")) or "still loading"
    return Group(
        Text.assemble(("draftline ", "bold"), server, "  ", (models, "cyan")),
        Columns([_load(now), _speed(change), _latency(change), _device(now, change), _outcomes(now)], padding=(0, 1)),
    )


def _load(now: Snapshot) -> Panel:
    blocks = now.number("cache_blocks")
    held = blocks - now.number("cache_blocks_free") - now.number("cache_blocks_cached")
    used = held / blocks if blocks else 0.0
    table = _table()
    table.add_row("running", f"{now.number('running_sequences'):,.0f}")
    table.add_row("waiting", f"{now.number('waiting_sequences'):,.0f}")
    queued, tokens = now.number("queued_requests"), now.number("queued_tokens")
    table.add_row("not started", f"{queued:,.0f} ({tokens:,.0f} tokens)")
    table.add_row("cache held", f"{used:.1%} of {blocks:,.0f}")
    table.add_row("", ProgressBar(total=1.0, completed=used, width=20))
    table.add_row("cached prefixes", f"{now.number('cache_blocks_cached'):,.0f} blocks")
    table.add_row("preemptions", f"{now.number('preemptions'):,.0f}")
    return _panel("load", table)


def _speed(change: _Change) -> Panel:
    table = _table()
    table.add_row("tokens/s", f"{change.rate('generated_tokens'):,.1f}")
    table.add_row("steps/s", f"{change.rate('steps'):,.1f}")
    table.add_row("requests/s", f"{change.rate('requests'):,.2f}")
    table.add_row("prefix hits", _percent(change.share("prefix_hit_tokens", "prefix_query_tokens")))
    table.add_row("drafts accepted", _percent(change.share("accepted_tokens", "drafted_tokens")))
    return _panel("speed", table)


def _latency(change: _Change) -> Panel:
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for column in ("", "p50", "p95", "p99"):
        table.add_column(column, justify="right" if column else "left")
    for title, name in (
        ("queue", "queue_seconds"),
        ("first token", "time_to_first_token_seconds"),
        ("between tokens", "inter_token_seconds"),
        ("request", "request_seconds"),
    ):
        table.add_row(title, *map(_seconds, change.quantiles(name)))
    return _panel("latency", table)


def _device(now: Snapshot, change: _Change) -> Panel:
    """The device's use: of its peak rates in the steps, of its memory, and what its driver says."""
    table = _table()
    table.add_row("step", _seconds(change.share("step_seconds", "steps")))
    for title, work in (("arithmetic (MFU)", "flops"), ("memory bandwidth", "bytes")):
        rate, peak = change.share(f"model_{work}", "step_seconds"), now.number(f"peak_{work}_per_second")
        table.add_row(title, _percent(rate / peak) if rate is not None and peak else _per_second(rate, work))
    memory = {labels["use"]: now.number("memory_bytes", **labels) for labels in now.labels("memory_bytes")}
    for use, size in memory.items():
        if size:
            table.add_row(use, f"{size / (1 << 30):,.2f} GiB")
    for labels in now.labels("gpu_utilization_ratio"):
        table.add_row("GPU busy", _percent(now.number("gpu_utilization_ratio", **labels)))
        used, total = (now.number(f"gpu_memory_{part}_bytes", **labels) / (1 << 30) for part in ("used", "total"))
        table.add_row("GPU memory", f"{used:,.1f} of {total:,.1f} GiB")
        power, heat = now.number("gpu_power_watts", **labels), now.number("gpu_temperature_celsius", **labels)
        table.add_row("power, temperature", f"{power:,.0f} W, {heat:.0f} °C")
    return _panel("device", table)


def _outcomes(now: Snapshot) -> Panel:
    table = _table()
    for code in sorted({labels["code"] for labels in now.labels("requests")}):
        table.add_row(code, f"{now.number('requests', code=code):,.0f}", style="" if code == "OK" else "yellow")
    if not table.rows:
        table.add_row("none yet", "")
    return _panel("requests", table)


def _table() -> Table:
    table = Table(box=None, show_header=False, padding=(0, 1))
    table.add_column()
    table.add_column(justify="right")
    return table


def _panel(title: str, content: RenderableType) -> Panel:
    return Panel(content, title=title, box=box.ROUNDED, border_style="dim", expand=False)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def _per_second(rate: float | None, unit: str) -> str:
    """A rate whose peak is not known: ``12.3 Gflops/s``."""
    return "–" if rate is None else f"{rate / 1e9:,.1f} G{unit}/s"


def _seconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value * 1000:,.1f} ms" if value < 1 else f"{value:,.2f} s"
