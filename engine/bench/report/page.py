"""``render``: one HTML page of one file of results, or of two compared. It needs no network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

from draftline.engine.bench.load.axes import label_of
from draftline.engine.bench.noise import Spread, ratio
from draftline.engine.bench.report.results import BY_TURN, Case, Line, Metric, View, cases_of, kind_of_line, view_of
from draftline.engine.bench.report.svg import Bar, Curve, Stack, bar_chart, line_chart, short, stack_chart

_MAX_BARS = 24
_NAMES = ("A", "B")
_HIDDEN_IN_LABELS = frozenset({"device", "engine_version", "options"})


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table: its text, a smaller note under it, and the class of its colour."""

    text: str
    note: str = ""
    style: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture with its title and the names of its colours: (colour number, dotted, name)."""

    title: str
    picture: str
    legend: Sequence[tuple[int, bool, str]] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """One benchmark: what all of its cases share, its pictures and its table."""

    title: str
    shared: str
    charts: Sequence[Chart]
    headings: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell]]]


def render(results: Mapping[str, Sequence[Line]], title: str) -> str:
    """The page. ``results`` has the lines of one file or two, by the name of the file; the first is the base."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(files(__package__).joinpath("page.html").read_text(encoding="utf-8"))
    lists = list(results.values())
    kinds = list(dict.fromkeys(kind_of_line(line) for lines in lists for line in lines))
    sections = []
    for kind in kinds:
        chosen = [[line for line in lines if kind_of_line(line) == kind] for lines in lists]
        view = view_of(kind, [line for lines in chosen for line in lines])
        sections.append(_section(view, cases_of(view, chosen)))
    sources = [
        (name, file, len(lines), _facts(lines), _values(lines, "command"))
        for name, (file, lines) in zip(_NAMES, results.items(), strict=False)
    ]
    return template.render(title=title, sources=sources, sections=sections, compares=len(lists) > 1)


def _facts(lines: Sequence[Line]) -> list[tuple[str, str]]:
    """The conditions of a file: each value that any of its lines has."""
    facts = []
    for name in ("machine", "commit"):
        if values := _values(lines, name):
            facts.append((name, "; ".join(values[:6]) + (f"; {len(values) - 6} more" if len(values) > 6 else "")))
    dates = sorted(str(line["date"]) for line in lines if line.get("date"))
    if dates:
        facts.insert(0, ("date", dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"))
    versions = {name: str(v) for line in lines for name, v in (line.get("versions") or {}).items()}
    if versions:
        facts.append(("versions", ", ".join(f"{name} {version}" for name, version in versions.items())))
    loads = [float(line["load"]) for line in lines if isinstance(line.get("load"), int | float)]
    if loads:
        facts.append(("load average", f"{min(loads):.1f} to {max(loads):.1f}"))
    return facts


def _values(lines: Sequence[Line], name: str) -> list[str]:
    """The different values of a field, in order of appearance."""
    return list(dict.fromkeys(str(line[name]) for line in lines if line.get(name)))


def _section(view: View, cases: Sequence[Case]) -> Section:
    common = {
        name: cases[0].key[name]
        for name in cases[0].key
        if all(case.key.get(name) == cases[0].key[name] for case in cases)
    }
    shared = ", ".join(_named(name, value) for name, value in common.items())
    # A number that is absent or 0 in every case, such as failures, has no column.
    metrics = [
        metric
        for metric in view.metrics
        if any(any(case.values(metric, file)) for case in cases for file in range(len(case.lines)))
    ]
    rows = [(_label(case, common) or view.title, [_cell(case, metric) for metric in metrics]) for case in cases]
    return Section(view.title, shared, _charts(view, metrics, cases, common), [m.label for m in metrics], rows)


def _named(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={each}" for key, each in value.items())
    named = name.replace("_", " ")
    return f"{named} {value}" if isinstance(value, int | float) or name.endswith("_len") else str(value)


def _label(case: Case, common: Mapping[str, Any], short_label: bool = False) -> str:
    hidden = _HIDDEN_IN_LABELS if short_label else frozenset()
    names = [name for name in case.key if name not in common and name not in hidden]
    return ", ".join(_named(name, case.key[name]) for name in names)


def _cell(case: Case, metric: Metric) -> Cell:
    sides = [Spread.of(values) if (values := case.values(metric, file)) else None for file in range(len(case.lines))]
    if len(sides) == 1:
        return Cell("–") if sides[0] is None else Cell(_shown(metric, sides[0].median), _noise(sides[0]))
    base, other = sides
    texts = " → ".join("–" if side is None else _shown(metric, side.median) for side in sides)
    if base is None or other is None:
        return Cell(texts, "in one file only")
    if metric.better == "neither" or not all([*case.values(metric, 0), *case.values(metric, 1)]):
        return Cell(texts, "" if base.median == other.median else "differs", "")
    found = ratio(case.values(metric, 1), case.values(metric, 0))
    note = f"{found.median:.2f}×"
    if found.low != found.high:
        note += f" ({found.low:.2f}–{found.high:.2f})"
    if found.verdict in ("one run", "within noise"):
        return Cell(texts, f"{note}, {found.verdict}")
    better = found.verdict == metric.better
    return Cell(texts, f"{note}, {'better' if better else 'worse'}", "better" if better else "worse")


def _noise(spread: Spread) -> str:
    return f"± {spread.relative:.1%} of {spread.count}" if spread.count > 1 and spread.relative else ""


def _shown(metric: Metric, value: float) -> str:
    if metric.is_share:
        return f"{value:.1%}"
    if value == int(value) and abs(value) < 1e6:
        return f"{value:,.0f}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _charts(view: View, metrics: Sequence[Metric], cases: Sequence[Case], common: Mapping[str, Any]) -> list[Chart]:
    """Curves of the cases that differ in one axis only, and bars of the rest."""
    charts: list[Chart] = []
    rest = list(cases)
    for axis in view.axes:
        if swept := _swept(rest, axis):
            charts += _sweep_charts(view, metrics, swept, axis)
            rest = [case for case in rest if case not in swept]
    if rest and view.bars is not None:
        charts += _bars(view.bars, rest, common)
    if view.stack:
        charts += _stacks(view, cases, common)
    return charts + _turn_charts(rest, common)


def _swept(cases: Sequence[Case], axis: str) -> list[Case]:
    """The cases that have others beside them which differ in this axis only."""
    groups: dict[str, list[Case]] = {}
    for case in cases:
        if isinstance(case.key.get(axis), int | float):
            others = {name: value for name, value in case.key.items() if name != axis}
            groups.setdefault(json.dumps(others, sort_keys=True, default=str), []).append(case)
    return [case for group in groups.values() if len(group) > 1 for case in group]


def _sweep_charts(view: View, metrics: Sequence[Metric], cases: Sequence[Case], axis: str) -> list[Chart]:
    """A chart of each metric over the axis. Metrics that differ in the percentile share a chart."""
    groups: dict[str, list[Metric]] = {}
    for metric in metrics:
        if metric.better != "neither" and metric.path != ("failed",):
            groups.setdefault(metric.label.replace(" p50", "").replace(" p99", ""), []).append(metric)
    charts = []
    for name, group in groups.items():
        curves = [curve for number, metric in enumerate(group) for curve in _curves(metric, cases, axis, bool(number))]
        # What is 0 everywhere, such as the cache hits of prompts that have nothing in common, needs no picture.
        if any(len(curve.points) > 1 and any(y for _, y in curve.points) for curve in curves):
            charts.append(_curve_chart(name, curves, label_of(axis), name))
    return charts


def _curves(metric: Metric, cases: Sequence[Case], axis: str, dotted: bool) -> list[Curve]:
    """A curve for each file and each combination of the other fields."""
    others: dict[str, list[Case]] = {}
    common = {
        name: value
        for name, value in cases[0].key.items()
        if name == axis or all(case.key.get(name) == value for case in cases)
    } | {axis: None}
    for case in cases:
        others.setdefault(_label(case, common), []).append(case)
    percentile = next((word for word in metric.label.split() if word in ("p50", "p99")), "")
    curves: list[Curve] = []
    for file in range(len(cases[0].lines)):
        for label, members in others.items():
            points = [
                (float(case.key[axis]), Spread.of(values).median)
                for case in members
                if (values := case.values(metric, file))
            ]
            if points:
                name = ", ".join(
                    part for part in (_NAMES[file] if len(cases[0].lines) > 1 else "", label, percentile) if part
                )
                curves.append(
                    Curve(name or metric.label, points, (file * len(others) + len(curves) % len(others)) % 6, dotted)
                )
    return curves


def _bars(metric: Metric, cases: Sequence[Case], common: Mapping[str, Any]) -> list[Chart]:
    bars = []
    for case in cases[:_MAX_BARS]:
        for file in range(len(case.lines)):
            if values := case.values(metric, file):
                spread = Spread.of(values)
                side = f"{_NAMES[file]}  " if len(case.lines) > 1 else ""
                label = side + (
                    _label(case, common, short_label=True) or _label(case, common) or _label(case, {}, short_label=True)
                )
                bars.append(Bar(label, spread.median, short(spread.median), file, spread.low, spread.high))
    return [Chart(metric.label, bar_chart(bars, metric.label))] if bars else []


def _stacks(view: View, cases: Sequence[Case], common: Mapping[str, Any]) -> list[Chart]:
    stacks = []
    for case in cases[:_MAX_BARS]:
        for file in range(len(case.lines)):
            if not case.lines[file]:
                continue
            parts = [
                (metric.label, Spread.of(values).median, number)
                for number, metric in enumerate(view.stack)
                if (values := case.values(metric, file))
            ]
            side = f"{_NAMES[file]}  " if len(case.lines) > 1 else ""
            label = side + (_label(case, common, short_label=True) or view.title)
            stacks.append(Stack(label, short(sum(value for _, value, _ in parts)), parts))
    used = {number for stack in stacks for _, value, number in stack.parts if value}
    legend = [(number, False, metric.label) for number, metric in enumerate(view.stack) if number in used]
    return [Chart(view.title, stack_chart(stacks, view.title), legend)] if stacks else []


def _turn_charts(cases: Sequence[Case], common: Mapping[str, Any]) -> list[Chart]:
    """The time to the first token and the cache hits by turn, of loads with several turns."""
    charts = []
    for field, metric in BY_TURN.items():
        curves: list[Curve] = []
        for case in cases:
            for file, lines in enumerate(case.lines):
                turns = lines[-1].get(field) if lines else None
                points = [
                    (float(number), value)
                    for number, turn in enumerate(turns or (), 1)
                    if (value := metric.read(turn)) is not None
                ]
                if len(points) > 1:
                    side = f"{_NAMES[file]} " if len(case.lines) > 1 else ""
                    name = side + (_label(case, common, short_label=True) or str(case.key.get("workload", "")))
                    curves.append(Curve(name, points, len(curves) % 6))
        if curves:
            charts.append(_curve_chart(f"{metric.label}, by turn", curves, "turn", metric.label))
    return charts


def _curve_chart(title: str, curves: Sequence[Curve], x_label: str, y_label: str) -> Chart:
    legend = [(curve.colour, curve.dotted, curve.name) for curve in curves]
    return Chart(title, line_chart(curves, x_label, y_label), legend)
