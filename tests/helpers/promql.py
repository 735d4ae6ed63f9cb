"""Evaluates the part of PromQL that dashboards use, on samples: promql-parser parses, this file computes as Prometheus does.

Semantics: https://prometheus.io/docs/prometheus/latest/querying/basics/, and ``extrapolatedRate`` and ``bucketQuantile`` of
Prometheus' promql package. An expression beyond that part raises NotImplementedError.
"""

from __future__ import annotations

import math
import operator
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import promql_parser as promql
from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]
"""All labels of a series; its name is the label ``__name__``."""

Vector = dict[Labels, float]

STALE_S = 300.0
"""The lookback: a selector finds samples that are at most this old."""


class Series:
    """Samples of many series over time."""

    def __init__(self) -> None:
        """No samples yet."""
        self._samples: dict[Labels, list[tuple[float, float]]] = defaultdict(list)

    def scrape(self, time: float, text: str, **target: str) -> None:
        """Add a page of metrics, with the labels of its target."""
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = {**sample.labels, **target, "__name__": sample.name}
                self._samples[frozenset(labels.items())].append((time, sample.value))

    def record(self, time: float, name: str, expression: str) -> None:
        """Evaluate a recording rule, and add its result."""
        for labels, value in self.evaluate(expression, time).items():
            self._samples[_with(labels, "__name__", name)].append((time, value))

    def evaluate(self, expression: str, time: float) -> Vector:
        """The instant vector of an expression. A scalar has no labels."""
        return self._value(promql.parse(expression), time)

    def _value(self, node: object, time: float) -> Vector:
        match node:
            case promql.NumberLiteral():
                return {frozenset(): node.val}
            case promql.ParenExpr():
                return self._value(node.expr, time)
            case promql.VectorSelector():
                found = self._select(node, time - STALE_S, time)
                return {labels: samples[-1][1] for labels, samples in found.items()}
            case promql.AggregateExpr():
                return self._aggregate(node, time)
            case promql.BinaryExpr():
                return self._binary(node, time)
            case promql.Call():
                return self._call(node, time)
        raise NotImplementedError(f"{type(node).__name__}: {node}")

    def _select(self, node: promql.VectorSelector, begin: float, end: float) -> dict[Labels, list[tuple[float, float]]]:
        if node.offset is not None or node.at is not None:
            raise NotImplementedError(str(node))
        matchers = [(each.op, each.name, each.value) for each in node.matchers.matchers]
        found = {}
        for labels, samples in self._samples.items():
            shown = dict(labels)
            if node.name in (None, shown["__name__"]) and all(_matches(shown.get(n, ""), o, v) for o, n, v in matchers):
                inside = [(time, value) for time, value in samples if begin <= time <= end]
                if inside:
                    found[labels] = inside
        return found

    def _aggregate(self, node: promql.AggregateExpr, time: float) -> Vector:
        compute = _AGGREGATIONS.get(str(node.op))
        if compute is None:
            raise NotImplementedError(str(node))
        groups: dict[Labels, list[float]] = defaultdict(list)
        kept = [] if node.modifier is None else node.modifier.labels
        by = node.modifier is None or node.modifier.type == promql.AggModifierType.By
        for labels, value in self._value(node.expr, time).items():
            groups[frozenset((n, v) for n, v in labels if n != "__name__" and (n in kept) == by)].append(value)
        return {labels: compute(values) for labels, values in groups.items()}

    def _binary(self, node: promql.BinaryExpr, time: float) -> Vector:
        if node.modifier is not None and (node.modifier.matching is not None or node.modifier.return_bool):
            raise NotImplementedError(str(node))
        left, right = self._value(node.lhs, time), self._value(node.rhs, time)
        op = str(node.op)
        if op == "and":
            names = {_nameless(labels) for labels in right}
            return {labels: value for labels, value in left.items() if _nameless(labels) in names}
        scalar = isinstance(node.rhs, promql.NumberLiteral)
        others = {_nameless(labels): value for labels, value in right.items()}
        if isinstance(node.lhs, promql.NumberLiteral) and not scalar:
            [number] = left.values()
            left = dict.fromkeys(right, number)
        made: Vector = {}
        for labels, value in left.items():
            other = right[frozenset()] if scalar else others.get(_nameless(labels))
            if other is None:
                continue
            if op in _COMPARISONS:  # a filter
                if _COMPARISONS[op](value, other):
                    made[labels] = value
            else:
                made[_nameless(labels)] = _ARITHMETIC[op](value, other)
        return made

    def _call(self, node: promql.Call, time: float) -> Vector:
        match node.func.name:
            case "rate" | "increase" as name:
                [matrix] = node.args
                seconds = matrix.range.total_seconds()
                made = {}
                for labels, samples in self._select(matrix.vector_selector, time - seconds, time).items():
                    increase = _increase(samples, time - seconds, time)
                    if increase is not None:
                        made[_nameless(labels)] = increase / seconds if name == "rate" else increase
                return made
            case "histogram_quantile":
                quantile, buckets = node.args
                return _quantiles(quantile.val, self._value(buckets, time))
            case "label_replace":
                vector, *names = node.args
                new, replacement, old, pattern = (name.val for name in names)
                return {
                    _replaced(labels, new, replacement, old, pattern): value
                    for labels, value in self._value(vector, time).items()
                }
        raise NotImplementedError(f"{node.func.name}: {node}")


def _matches(value: str, op: object, wanted: str) -> bool:
    match str(op).rpartition(".")[2]:
        case "Equal":
            return value == wanted
        case "NotEqual":
            return value != wanted
        case "Re":
            return re.fullmatch(wanted, value) is not None
        case "NotRe":
            return re.fullmatch(wanted, value) is None
    raise NotImplementedError(str(op))


def _increase(samples: Sequence[tuple[float, float]], begin: float, end: float) -> float | None:
    """A counter's growth in a range, extrapolated to its ends."""
    if len(samples) < 2:
        return None
    (first_at, first), (last_at, last) = samples[0], samples[-1]
    grown = last - first + sum(before for (_, before), (_, after) in pairwise(samples) if after < before)
    sampled = last_at - first_at
    between = sampled / (len(samples) - 1)
    to_begin, to_end = first_at - begin, end - last_at
    if to_begin >= 1.1 * between:
        to_begin = between / 2
    if grown > 0 and first >= 0:
        to_begin = min(to_begin, sampled * first / grown)  # a counter was not below zero
    if to_end >= 1.1 * between:
        to_end = between / 2
    return grown * (sampled + to_begin + to_end) / sampled


def _quantiles(quantile: float, buckets: Vector) -> Vector:
    """The quantile of each histogram, linear within a bucket."""
    histograms: dict[Labels, list[tuple[float, float]]] = defaultdict(list)
    for labels, count in buckets.items():
        shown = dict(labels)
        rest = frozenset((n, v) for n, v in labels if n not in ("le", "__name__"))
        histograms[rest].append((float(shown["le"]), count))
    return {labels: _quantile(quantile, sorted(counts)) for labels, counts in histograms.items()}


def _quantile(quantile: float, counts: Sequence[tuple[float, float]]) -> float:
    if len(counts) < 2 or not math.isinf(counts[-1][0]) or not counts[-1][1]:
        return math.nan
    rank = quantile * counts[-1][1]
    index = next(index for index, (_, count) in enumerate(counts) if count >= rank)
    if index == len(counts) - 1:
        return counts[-2][0]
    upper, count = counts[index]
    if index == 0 and upper <= 0:
        return upper
    lower, before = counts[index - 1] if index else (0.0, 0.0)
    return lower + (upper - lower) * (rank - before) / (count - before)


def _replaced(labels: Labels, new: str, replacement: str, old: str, pattern: str) -> Labels:
    found = re.fullmatch(pattern, dict(labels).get(old, ""))
    if found is None:
        return labels
    return _with(labels, new, found.expand(re.sub(r"\$(\d+)", r"\\\1", replacement)))


def _with(labels: Labels, name: str, value: str) -> Labels:
    return frozenset({**dict(labels), name: value}.items())


def _nameless(labels: Labels) -> Labels:
    return frozenset((name, value) for name, value in labels if name != "__name__")


def _quotient(left: float, right: float) -> float:
    return left / right if right else math.nan if not left or math.isnan(left) else math.copysign(math.inf, left)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


_AGGREGATIONS: dict[str, Callable[[Sequence[float]], float]] = {"sum": sum, "avg": _mean, "max": max, "min": min}
_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _quotient,
}
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}


def metric_names(expression: str) -> Iterable[str]:
    """The names of the metrics that an expression selects."""
    names: list[str] = []

    def visit(node: object) -> bool:
        if isinstance(node, promql.VectorSelector) and node.name is not None:
            names.append(node.name)
        return True

    promql.walk(promql.parse(expression), visit)
    return names
