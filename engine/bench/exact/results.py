"""The results of a configuration: the fields of a line, and the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from draftline.engine.bench.exact.answers import SuiteAnswers, equal_answers, first_difference
from draftline.engine.bench.exact.columns import Column
from draftline.engine.protocol import EngineInfo


def result(column: Column, engine: EngineInfo, name: str, got: SuiteAnswers, alone: SuiteAnswers) -> dict[str, Any]:
    """The fields of a result: one suite in one column, as an engine has answered it."""
    equal, equal_tokens = equal_answers(got.answers, alone.answers)
    difference = first_difference(got.answers, alone.answers)
    return {
        "device": engine.device,
        "dtype": engine.dtype,
        "weights": engine.quantization,
        "system_fingerprint": engine.system_fingerprint,
        "options": dict(column.options),
        "suite": name,
        "column": column.name,
        "concurrency": column.concurrencies[-1],
        "questions": len(got.answers),
        "equal": equal,
        "equal_tokens": equal_tokens,
        "counted": column.counted,
        "count": got.count,
        "tokens": got.tokens,
        "seconds": got.seconds,
        "tokens_per_s": got.tokens / got.seconds,
        "first_difference": None if difference is None else asdict(difference),
    }


def holds(result: Mapping[str, Any]) -> bool:
    """Whether a result shows that all answers are equal."""
    return bool(result["equal"] == result["questions"] and result["count"])


def table(results: Sequence[Mapping[str, Any]]) -> Table:
    """The results of one configuration."""
    first = results[0]
    options = ", ".join(f"{name} {first[name]}" for name in ("dtype", "weights", "kv_cache_dtype"))
    shown = Table(title=f"{first['model']} on {first['machine']}: {options}", title_justify="left")
    for name in ("suite", "column"):
        shown.add_column(name)
    for name in ("equal", "equal tokens", "tokens/s", "counted"):
        shown.add_column(name, justify="right")
    shown.add_column("first difference: token and log-probability, alone")
    for line in results:
        at, n = line["first_difference"], line["questions"]
        where = at and f"question {at['question']}, position {at['position']}: {at['got']}, {at['expected']}"
        shown.add_row(
            line["suite"],
            line["column"],
            f"{line['equal']} of {n}",
            f"{line['equal_tokens']} of {n}",
            f"{line['tokens_per_s']:,.1f}",
            f"{line['count']:,} {line['counted']}",
            where or ("" if line["count"] else f"nothing shown: no {line['counted']}"),
            style=None if holds(line) else "red",
        )
    return shown
