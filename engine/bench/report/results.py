"""Results that were read from a file: which lines measure the same thing, and which numbers of them to show."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from draftline.engine.bench.json_lines import FileError, json_lines, read_text
from draftline.engine.bench.load.axes import SWEPT_FIELDS
from draftline.engine.bench.report.fields import EACH, NUMBER, NUMBER_OR_TEXT, OBJECT, Field, check_fields
from draftline.engine.errors import UsageError

Line = Mapping[str, Any]
Better = Literal["higher", "lower", "neither"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A number of a line.

    Attributes:
        path: the fields that lead to it.
        label: its heading, with the unit.
        better: which direction is an improvement.
        is_share: whether it is shown as a percentage.
        scale: what the number is multiplied by.
    """

    path: tuple[str, ...]
    label: str
    better: Better
    is_share: bool = False
    scale: float = 1.0

    def read(self, line: Line | float | None) -> float | None:
        """The number, or None where the line has none that is finite.

        Where the path is empty, it is the number itself.
        """
        value: Any = line
        for name in self.path:
            if not isinstance(value, Mapping) or value.get(name) is None:
                return None
            value = value[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
            return None
        return float(value) * self.scale


@dataclass(frozen=True, slots=True)
class View:
    """How the lines of one benchmark are shown.

    Attributes:
        title: its heading.
        key: the fields that tell its cases apart. Lines that agree in them are repetitions.
        metrics: the numbers to show.
        axes: fields that a sweep may vary, to plot over.
        bars: the metric to plot as bars where nothing is varied.
        stack: the metrics to plot as parts of one bar for each case.
    """

    title: str
    key: tuple[str, ...]
    metrics: tuple[Metric, ...]
    axes: tuple[str, ...] = ()
    bars: Metric | None = None
    stack: tuple[Metric, ...] = ()


_TOKENS = Metric(("tokens_per_s",), "tokens/s", "higher")
_LOAD = (
    _TOKENS,
    Metric(("ttft_ms", "p50"), "TTFT p50 ms", "lower"),
    Metric(("ttft_ms", "p99"), "TTFT p99 ms", "lower"),
    Metric(("inter_token_ms", "p50"), "inter-token p50 ms", "lower"),
    Metric(("inter_token_ms", "p99"), "inter-token p99 ms", "lower"),
    Metric(("tpot_ms", "p50"), "TPOT p50 ms", "lower"),
    Metric(("e2e_ms", "p50"), "end to end p50 ms", "lower"),
    Metric(("e2e_ms", "p99"), "end to end p99 ms", "lower"),
    Metric(("goodput_per_s",), "goodput/s", "higher"),
    Metric(("cache_hit_rate",), "cache hits", "higher", is_share=True),
    Metric(("drafts", "rate"), "drafts accepted", "higher", is_share=True),
    Metric(("utilization", "mfu"), "MFU", "higher", is_share=True),
    Metric(("utilization", "bandwidth"), "bandwidth", "higher", is_share=True),
    Metric(("failed",), "failed", "lower"),
)
BY_TURN: Mapping[str, Metric] = {
    "ttft_ms_by_turn": Metric(("p50",), "TTFT p50 ms", "lower"),
    "cache_hit_rate_by_turn": Metric((), "cache hits, %", "higher", scale=100),
}
"""Fields with an entry for each turn of a conversation, and the number of an entry."""

_PARTS = tuple(
    Metric((use,), f"{use} MiB", "lower", scale=1 / (1 << 20)) for use in ("weights", "graphs", "activations", "cache")
)
_WHO = ("engine", "engine_version", "model", "dtype", "device")

VIEWS: Mapping[str, View] = {
    "load": View(
        "Load",
        (*_WHO, "protocol", "workload", "preset", "prompts", *SWEPT_FIELDS, "interrupted"),
        _LOAD,
        SWEPT_FIELDS,
        _TOKENS,
    ),
    "throughput": View(
        "Offline throughput",
        ("engine", "engine_version", "model", "weights", "dtype", "options", "workload", "interrupted"),
        (
            _TOKENS,
            Metric(("decode_tokens_per_s",), "decode tokens/s", "higher"),
            Metric(("prompt_tokens_per_s",), "prompt tokens/s", "higher"),
            Metric(("prefill_s",), "prefill s", "lower"),
        ),
        bars=_TOKENS,
    ),
    "latency": View(
        "Latency of one batch",
        ("engine", "engine_version", "model", "dtype", "batch", "prompt_len", "output_len", "interrupted"),
        (
            Metric(("prefill_ms", "p50"), "prefill p50 ms", "lower"),
            Metric(("step_ms", "p50"), "step p50 ms", "lower"),
            Metric(("step_ms", "p99"), "step p99 ms", "lower"),
            Metric(("total_ms", "p50"), "total p50 ms", "lower"),
        ),
        ("batch",),
        Metric(("step_ms", "p50"), "step p50 ms", "lower"),
    ),
    "speculation": View(
        "Speculative decoding",
        ("model", "draft_model", "drafter", "dataset", "concurrency", "interrupted"),
        (
            Metric(("speedup",), "speed-up", "higher"),
            Metric(("speedup_low",), "lowest round", "higher"),
            Metric(("speedup_high",), "highest round", "higher"),
            Metric(("plain_tokens_per_s",), "plain tokens/s", "higher"),
            Metric(("tokens_per_s",), "drafting tokens/s", "higher"),
            Metric(("acceptance_length",), "acceptance length", "higher"),
            Metric(("different_answers",), "answers that differ", "lower"),
        ),
        ("concurrency",),
        Metric(("speedup",), "speed-up", "higher"),
    ),
    "structured": View(
        "Constraints",
        ("model", "dtype", "constraint", "rows", "interrupted"),
        (
            _TOKENS,
            Metric(("of_unconstrained",), "of unconstrained", "higher", is_share=True),
            Metric(("valid_share",), "valid outputs", "higher", is_share=True),
        ),
        bars=_TOKENS,
    ),
    "exactness": View(
        "Exactness",
        ("model", "dtype", "weights", "kv_cache_dtype", "suite", "column"),
        (
            Metric(("equal",), "equal answers", "higher"),
            Metric(("questions",), "answers", "neither"),
            Metric(("count",), "counted", "neither"),
            _TOKENS,
        ),
    ),
    "ablation": View(
        "Ablation",
        ("model", "workload", "preset", "variant", "state"),
        (
            _TOKENS,
            Metric(("tokens_per_s_change",), "change of tokens/s", "neither", is_share=True),
            Metric(("first_token_ms_p50",), "first token p50 ms", "lower"),
            Metric(("first_token_change",), "change of first token", "neither", is_share=True),
            Metric(("fixed_bytes",), "weights, activations, graphs MiB", "lower", scale=1 / (1 << 20)),
            Metric(("cache_bytes_a_token",), "cache B/token", "lower"),
            Metric(("outputs_equal",), "equal outputs", "higher"),
            Metric(("outputs",), "outputs", "neither"),
            Metric(("failed",), "failed", "lower"),
        ),
        bars=_TOKENS,
    ),
    "profile": View(
        "Steps",
        ("model", "device", "dtype", "prompt_len", "phase", "rows"),
        (
            Metric(("step_ms",), "step ms", "lower"),
            Metric(("limit_ms",), "device's limit ms", "neither"),
            Metric(("limit_share",), "limit / step", "higher", is_share=True),
            Metric(("mfu",), "MFU", "higher", is_share=True),
            Metric(("bandwidth",), "bandwidth", "higher", is_share=True),
            Metric(("busy_share",), "device busy", "higher", is_share=True),
            Metric(("steps",), "steps", "neither"),
        ),
        bars=Metric(("step_ms",), "step ms", "lower"),
    ),
    "memory": View(
        "Memory by batch size",
        ("model", "device", "dtype", "prompt_len", "rows"),
        (
            Metric(("running",), "ran at once", "higher"),
            Metric(("preemptions",), "preemptions", "lower"),
            *_PARTS,
            Metric(("total",), "total MiB", "lower", scale=1 / (1 << 20)),
            Metric(("cache_free",), "free cache MiB", "higher", scale=1 / (1 << 20)),
        ),
        stack=_PARTS,
    ),
}
"""By a line's field ``benchmark``."""

_PROVENANCE = frozenset({"date", "machine", "commit"})
"""Every line of every benchmark has one of these or its ``benchmark``."""

_COMMON = _PROVENANCE | {"format", "load", "versions", "command", "benchmark"}


@dataclass(frozen=True, slots=True)
class Case:
    """Repetitions of one measurement, from one file or two.

    Attributes:
        key: the fields that name it, with their values.
        lines: the lines of each file.
    """

    key: Mapping[str, Any]
    lines: tuple[Sequence[Line], ...]

    def values(self, metric: Metric, file: int) -> list[float]:
        """The metric in each repetition of a file."""
        return [value for line in self.lines[file] if (value := metric.read(line)) is not None]


def read_results(path: Path, fields_of: Callable[[Line], Iterable[Field]]) -> list[Line]:
    """The lines of a file, of which the fields are checked that a reader says it uses.

    Raises:
        UsageError: it cannot be read, has no line, or a line is no JSON object or no result, or has a wrong field.
    """
    lines: list[Line] = []
    try:
        for where, line in json_lines(path, read_text(path)):
            if not isinstance(line, dict):
                raise UsageError(f"{where}: not a JSON object")
            if kind_of_line(line) == "other" and line.keys().isdisjoint(_PROVENANCE):
                raise UsageError(f"{where}: not a benchmark's result: has no 'benchmark' and no 'date'")
            check_fields(where, line, fields_of(line))
            lines.append(line)
    except FileError as error:
        raise UsageError(str(error)) from None
    if not lines:
        raise UsageError(f"{path}: has no results")
    return lines


def reported_fields(line: Line) -> Iterator[Field]:
    """The fields of a line that the page shows as numbers, or looks into."""
    yield Field(("versions",), OBJECT)
    yield from (Field((name, EACH, *metric.path), NUMBER) for name, metric in BY_TURN.items())
    if view := VIEWS.get(kind_of_line(line)):
        yield from (Field(metric.path, NUMBER) for metric in view.metrics)
        yield from (Field((axis,), NUMBER_OR_TEXT) for axis in view.axes)


def kind_of_line(line: Line) -> str:
    """The benchmark of a line. Older lines of benchmarks/ do not name it."""
    if "benchmark" in line:
        return str(line["benchmark"])
    if "prompt_tokens_per_s" in line and "description" in line:
        return "throughput"
    if "speedup" in line and "concurrency" in line:
        return "speculation"
    if "suite" in line and "column" in line:
        return "exactness"
    return "other"


def view_of(kind: str, lines: Sequence[Line]) -> View:
    """How a benchmark is shown: by its own view, or, where it has none, by its plain fields: texts are the key."""
    if kind in VIEWS:
        return VIEWS[kind]
    key: dict[str, None] = {}
    numbers: dict[str, None] = {}
    for line in lines:
        for name, value in line.items():
            if name in _COMMON:
                continue
            if isinstance(value, str | bool):
                key[name] = None
            elif isinstance(value, int | float):
                numbers[name] = None
    metrics = tuple(Metric((name,), name.replace("_", " "), "neither") for name in numbers if name not in key)
    bars = next((metric for metric in metrics if metric.path == ("tokens_per_s",)), None)
    return View(kind.capitalize(), tuple(key), metrics, bars=bars)


def cases_of(view: View, files: Sequence[Sequence[Line]]) -> list[Case]:
    """The cases of a view in one file or two, in order of appearance."""
    found: dict[str, tuple[dict[str, Any], tuple[list[Line], ...]]] = {}
    for index, lines in enumerate(files):
        for line in lines:
            key = {name: line[name] for name in view.key if line.get(name) not in (None, "", {})}
            if len(files) > 1:
                key.pop("engine_version", None)  # two versions of one engine are what is compared
            name = json.dumps(key, sort_keys=True, default=str)
            found.setdefault(name, (key, tuple([] for _ in files)))[1][index].append(line)
    return [Case(key, lines) for key, lines in found.values()]
