"""What the metrics' registry collects, as AdminService's messages."""

from __future__ import annotations

import math
from collections.abc import Iterable

from prometheus_client.core import Metric
from prometheus_client.core import Sample as Observation

from draftline.v1 import admin_pb2 as pb

_KINDS = {
    "gauge": pb.METRIC_KIND_GAUGE,
    "counter": pb.METRIC_KIND_COUNTER,
    "histogram": pb.METRIC_KIND_HISTOGRAM,
}


def metrics(families: Iterable[Metric]) -> list[pb.Metric]:
    """All of them."""
    return [
        pb.Metric(
            name=family.name,
            help=family.documentation,
            kind=_KINDS[family.type],
            samples=_histograms(family) if family.type == "histogram" else _numbers(family),
        )
        for family in families
    ]


def _numbers(family: Metric) -> list[pb.Sample]:
    return [
        pb.Sample(labels=sample.labels, number=sample.value)
        for sample in family.samples
        if not sample.name.endswith("_created")
    ]


def _histograms(family: Metric) -> list[pb.Sample]:
    """One sample for each set of labels, where Prometheus has one for each bucket."""
    found: dict[tuple[tuple[str, str], ...], pb.Sample] = {}
    for sample in family.samples:
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        message = found.setdefault(tuple(sorted(labels.items())), pb.Sample(labels=labels))
        _add(message.histogram, sample)
    return list(found.values())


def _add(histogram: pb.Histogram, sample: Observation) -> None:
    if sample.name.endswith("_bucket"):
        bound = sample.labels["le"]
        histogram.buckets.add(
            upper_bound=math.inf if bound == "+Inf" else float(bound), cumulative_count=round(sample.value)
        )
    elif sample.name.endswith("_sum"):
        histogram.sum = sample.value
