"""Tables of profiles, for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from draftline.engine.bench.tables import percent

Line = Mapping[str, Any]

_NAME_WIDTH = 72
_MIB = 1 << 20


def phase_table(line: Line) -> Table:
    """A phase by part of the step. Times are of one step."""
    limit = "" if line["limit_ms"] is None else f", limit {line['limit_ms']:.3f} ms ({percent(line['limit_share'])})"
    title = (
        f"{line['phase']}, {line['rows']} rows: {line['step_ms']:.3f} ms a step{limit}; MFU {percent(line['mfu'])}, "
        f"bandwidth {percent(line['bandwidth'])}; device busy {percent(line['busy_share'])} of the profile"
    )
    table = Table(title=title, title_justify="left")
    for name in ("part", "host µs", "device µs", "share of device", "kernels"):
        table.add_column(name, justify="left" if name == "part" else "right")
    whole = sum(part["device_us"] for part in line["parts"]) or 1.0
    for part in line["parts"]:
        table.add_row(
            part["part"],
            f"{part['host_us']:,.1f}",
            f"{part['device_us']:,.1f}",
            percent(part["device_us"] / whole),
            f"{part['kernels']:,.1f}",
        )
    return table


def kernel_table(line: Line, most: int) -> Table:
    """The longest kernels of a phase, or on a CPU its operations. Times are of one step."""
    table = Table(title=f"{line['phase']}, {line['rows']} rows: by kernel", title_justify="left")
    for name in ("kernel", "part", "calls", "µs/call", "µs", "share"):
        table.add_column(name, justify="left" if name in ("kernel", "part") else "right")
    whole = sum(kernel["us"] for kernel in line["kernels"]) or 1.0
    for kernel in line["kernels"][:most]:
        each = kernel["us"] / kernel["calls"] if kernel["calls"] else 0.0
        table.add_row(
            kernel["kernel"][:_NAME_WIDTH],
            kernel["part"],
            f"{kernel['calls']:,.1f}",
            f"{each:,.2f}",
            f"{kernel['us']:,.1f}",
            percent(kernel["us"] / whole),
        )
    return table


def memory_table(lines: Sequence[Line]) -> Table:
    """The memory of each batch size in MiB. The last sizes are those at the boundary."""
    table = Table(title="memory by batch size, in MiB", title_justify="left")
    columns = ("weights", "cache", "activations", "graphs", "total", "cache_free")
    for name in ("rows", "running", "preemptions", *columns):
        table.add_column(name.replace("_", " "), justify="right")
    for line in lines:
        full = line["running"] < line["rows"] or line["preemptions"]
        sizes = [f"{line[name] / _MIB:,.1f}" for name in columns]
        counts = [str(line[name]) for name in ("rows", "running", "preemptions")]
        table.add_row(*counts, *sizes, style="yellow" if full else None)
    return table
