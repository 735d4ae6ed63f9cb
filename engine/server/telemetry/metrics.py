"""The server's metrics: the engine's own counts, and counts of the requests that have ended.

`ENGINE_METRICS` gives each field of `EngineStats` its metric. Prometheus, AdminService and ``draftline top`` all show
the metrics of one registry.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from draftline import __version__
from draftline.engine.protocol import EngineClient, EngineInfo
from draftline.engine.server.codes import INTERNAL
from draftline.engine.server.telemetry.gpu import GpuMetrics
from draftline.engine.server.telemetry.reports import RequestReport
from draftline.engine.stats import TOKEN_GAP_BOUNDS_S, DrafterStats, EngineStats, HistogramCounts, WorkCounts

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)

_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)

_COMPILE_SECONDS = (0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)

_Family = Callable[[Any], Iterable[Metric]]
"""Converts a field's value to its metrics."""


def _gauge(name: str, about: str) -> _Family:
    return lambda value: (GaugeMetricFamily(f"draftline_{name}", about, value),)


def _counter(name: str, about: str) -> _Family:
    return lambda value: (CounterMetricFamily(f"draftline_{name}", about, value),)


def _histogram(name: str, about: str) -> _Family:
    def family(value: HistogramCounts) -> Iterable[Metric]:
        metric = HistogramMetricFamily(f"draftline_{name}", about)
        below = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, value.bounds), "+Inf"), value.counts, strict=True):
            below += count
            buckets.append((bound, below))
        metric.add_metric([], buckets, value.total)
        return (metric,)

    return family


def _drafter(stats: DrafterStats) -> Iterable[Metric]:
    for name, about, by_position in (
        ("drafted_tokens", "Tokens drafted, by position.", stats.drafted_by_position),
        ("accepted_tokens", "Drafted tokens that were accepted, by position.", stats.accepted_by_position),
    ):
        metric = CounterMetricFamily(f"draftline_{name}", about, labels=("drafter", "position"))
        for position, count in enumerate(by_position, 1):
            metric.add_metric([stats.name, str(position)], count)
        yield metric
    steps = CounterMetricFamily(
        "draftline_drafted_sequence_steps", "Steps with drafts, once for each sequence.", labels=("drafter",)
    )
    steps.add_metric([stats.name], stats.steps)
    length = GaugeMetricFamily(
        "draftline_acceptance_length", "Mean tokens that a step with drafts decides.", labels=("drafter",)
    )
    length.add_metric([stats.name], stats.acceptance_length)
    seconds = CounterMetricFamily(
        "draftline_drafted_step_seconds", "Time of the steps with drafts, by part.", labels=("drafter", "part")
    )
    for part, value in asdict(stats.times).items():
        seconds.add_metric([stats.name, part.removesuffix("_s")], value)
    yield from (steps, length, seconds)


def _work(counts: WorkCounts) -> Iterable[Metric]:
    for name, about, value in (
        ("step_seconds", "Time of the steps.", counts.seconds),
        ("model_flops", "Arithmetic of the steps, by the model's own count.", counts.flops),
        ("model_bytes", "Memory traffic of the steps, by the model's own count.", counts.num_bytes),
    ):
        yield CounterMetricFamily(f"draftline_{name}", about, value)


def _device(info: EngineInfo) -> Iterable[Metric]:
    memory = GaugeMetricFamily(
        "draftline_memory_bytes", "Memory that the engine has taken on its device, by use.", labels=("use",)
    )
    for use, size in asdict(info.memory).items():
        memory.add_metric([use], size)
    yield memory
    if info.peak is not None:
        for name, about, rate in (
            ("peak_flops", "Arithmetic that the device can do in a second.", info.peak.flops_per_s),
            ("peak_bytes", "Memory traffic that the device can do in a second.", info.peak.bytes_per_s),
        ):
            yield GaugeMetricFamily(f"draftline_{name}_per_second", about, rate)


ENGINE_METRICS: Mapping[str, _Family] = {
    "running": _gauge("running_sequences", "Sequences that hold a slot."),
    "waiting": _gauge("waiting_sequences", "Sequences without a slot, including preempted ones."),
    "queued_requests": _gauge("queued_requests", "Requests that have not run yet."),
    "queued_tokens": _gauge("queued_tokens", "Prompt tokens of the requests that have not run yet."),
    "free_blocks": _gauge("cache_blocks_free", "Cache blocks without contents."),
    "cached_blocks": _gauge("cache_blocks_cached", "Cache blocks held by the prefix tree only."),
    "total_blocks": _gauge("cache_blocks", "All cache blocks."),
    "steps": _counter("steps", "Steps of the engine."),
    "generated_tokens": _counter("generated_tokens", "Output tokens."),
    "failed_outputs": _counter(
        "failed_outputs", "Outputs that an error or a limit of their own has ended, such as their constraint's."
    ),
    "preemptions": _counter("preemptions", "Preemptions of sequences."),
    "prefix_hit_tokens": _counter("prefix_hit_tokens", "Prompt tokens found in the cache."),
    "prefix_query_tokens": _counter("prefix_query_tokens", "Prompt tokens looked up in the cache."),
    "kernels_compiling": _gauge(
        "kernels_compiling", "Kernels that few requests need, compiled beside the steps after a machine's first start."
    ),
    "graphs_to_capture": _gauge(
        "graphs_to_capture",
        "CUDA graphs of common steps that are captured while there is no work, or at their first use.",
    ),
    "getting_ready": _gauge("getting_ready", "1 while such kernels or graphs may delay steps, else 0."),
    "drafter": _drafter,
    "work": _work,
    "token_gaps": _histogram("inter_token_seconds", "Time between two steps, once for each decoding sequence."),
}
"""The metrics of each field of `EngineStats`, and of what follows from them."""


class Metrics(Collector):
    """The metrics of one server, in a registry of its own.

    Attributes:
        registry: collects them.
        refusals: counts the calls that are refused for their token, by code.
    """

    def __init__(self) -> None:
        """Metrics with zero counts, before the engine serves."""
        self.registry = CollectorRegistry()
        self._engine: EngineClient | None = None
        self._gpus = GpuMetrics()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        self.refusals = Counter(
            "draftline_authentication_failures", "Calls refused for their token.", ("code",), registry=self.registry
        )
        self._requests = Counter(
            "draftline_requests", "Requests that have ended.", ("call", "code", "caller"), registry=self.registry
        )
        # Without labels, so that it begins at 0: the first fault of a caller would not be a growth that an alert sees.
        self._faults = Counter(
            "draftline_faults", "Requests that a fault of the server has ended: INTERNAL.", registry=self.registry
        )
        self._finishes = Counter(
            "draftline_outputs", "Outputs that have ended, by reason.", ("finish",), registry=self.registry
        )
        self._tokens = Counter(
            "draftline_tokens", "Tokens of finished requests.", ("kind", "caller"), registry=self.registry
        )
        self._first_token = self._seconds("time_to_first_token_seconds", "From arrival to the first token.")
        self._compiling = self._seconds(
            "constraint_wait_seconds", "The wait of a request with a constraint for it to compile, after its arrival."
        )
        self._queued = self._seconds(
            "queue_seconds", "From arrival, without the wait for a constraint to compile, to the first step."
        )
        self._prefill = self._seconds("prefill_seconds", "From the first step to the first token.")
        self._total = self._seconds("request_seconds", "From arrival to the end of a request, unless it was refused.")

        self._per_token = Histogram(
            "draftline_time_per_output_token_seconds",
            "Time from the first token to the last, divided by the tokens after the first; once for each output.",
            buckets=TOKEN_GAP_BOUNDS_S,
            registry=self.registry,
        )
        self._prompt_length = self._length("prompt_length_tokens", "Tokens of a request's prompt.")
        self._output_length = self._length("output_length_tokens", "Tokens of an output.")
        self._compiled = Histogram(
            "draftline_constraint_compile_seconds",
            "Time to compile a constraint, by result.",
            ("result",),
            buckets=_COMPILE_SECONDS,
            registry=self.registry,
        )

    def _length(self, name: str, about: str) -> Histogram:
        return Histogram(f"draftline_{name}", about, buckets=_TOKENS, registry=self.registry)

    def _seconds(self, name: str, about: str) -> Histogram:
        return Histogram(f"draftline_{name}", about, buckets=_SECONDS, registry=self.registry)

    def watch(self, engine: EngineClient) -> None:
        """Collect an engine's counts from now on."""
        self._engine = engine
        engine.compiler.observer = lambda result, seconds: self._compiled.labels(result).observe(seconds)

    @property
    def model(self) -> str:
        """The served model; empty while it loads."""
        return "" if self._engine is None else self._engine.info.model

    def observe(self, report: RequestReport) -> None:
        """Count a request that has ended."""
        caller = report.origin.caller
        self._requests.labels(report.origin.call, report.code, caller).inc()
        if report.code == INTERNAL:
            self._faults.inc()
        if report.submitted and not report.refused:
            self._total.observe(report.seconds)  # also of those that were cancelled or exceeded their timeout
        if not report.outputs:
            return
        self._tokens.labels("prompt", caller).inc(report.outputs[0].usage.prompt_tokens)
        self._tokens.labels("cached", caller).inc(report.outputs[0].usage.cached_tokens)
        self._prompt_length.observe(report.outputs[0].usage.prompt_tokens)
        for output in report.outputs:
            tokens, timing = output.usage.completion_tokens, output.timing
            self._output_length.observe(tokens)
            if tokens > 1:
                self._per_token.observe((timing.total_s - timing.first_token_s) / (tokens - 1))
            self._finishes.labels(output.finish_reason.name.lower()).inc()
            self._tokens.labels("completion", caller).inc(output.usage.completion_tokens)
            self._queued.observe(output.timing.queued_s)
            if output.constraint_complete is not None:
                self._compiling.observe(output.timing.constraint_compile_s)
            if output.usage.completion_tokens:
                self._prefill.observe(output.timing.prefill_s)
                self._first_token.observe(output.timing.first_token_s)

    @override
    def collect(self) -> Iterable[Metric]:
        build = {"version": __version__, "python": platform.python_version()}
        built = GaugeMetricFamily("draftline_build_info", "The server's version; always 1.", labels=list(build))
        built.add_metric(list(build.values()), 1)
        yield built
        if self._engine is None:
            return
        info = self._engine.info
        labels = {"model": info.model, "dtype": info.dtype, "device": info.device}
        served = GaugeMetricFamily("draftline_model", "The served model; always 1.", labels=list(labels))
        served.add_metric(list(labels.values()), 1)
        yield served
        about = "Constraints that wait to be compiled, or are being compiled."
        yield GaugeMetricFamily("draftline_constraints_compiling", about, self._engine.compiler.in_flight)
        yield from _device(info)
        yield from self._gpus.metrics(info.device_uuids)
        up = GaugeMetricFamily(
            "draftline_replica_up", "1 while the engine runs, 0 once it has ended.", labels=["replica"]
        )
        for index, running in enumerate(self._engine.replicas_running()):
            up.add_metric([str(index)], running)
        yield up
        by_replica = self._engine.stats_by_replica()
        if len(by_replica) == 1:
            yield from _engine_metrics(by_replica[0])
        else:
            yield from _by_replica(map(_engine_metrics, by_replica))


def _engine_metrics(stats: EngineStats) -> Iterator[Metric]:
    for field, family in ENGINE_METRICS.items():
        yield from family(getattr(stats, field))
    held = stats.total_blocks - stats.free_blocks - stats.cached_blocks
    yield from _gauge("cache_usage_ratio", "Ratio of cache blocks that sequences hold.")(
        held / stats.total_blocks if stats.total_blocks else 0.0
    )


def _by_replica(replicas: Iterable[Iterable[Metric]]) -> Iterable[Metric]:
    """The metrics of several engines as one, with the engine as a label."""
    joined: dict[str, Metric] = {}
    for index, metrics in enumerate(replicas):
        for metric in metrics:
            samples = [sample._replace(labels={"replica": str(index), **sample.labels}) for sample in metric.samples]
            if metric.name in joined:
                joined[metric.name].samples += samples
            else:
                metric.samples = samples
                joined[metric.name] = metric
    return joined.values()


class ModelLabel(Collector):
    """The metrics of another collector, labelled with the served model, since Prometheus joins many servers."""

    def __init__(self, metrics: Metrics) -> None:
        """``metrics`` knows the model once the engine serves."""
        self._metrics = metrics

    @override
    def collect(self) -> Iterable[Metric]:
        model = self._metrics.model
        for metric in self._metrics.registry.collect():
            metric.samples = [sample._replace(labels={"model": model, **sample.labels}) for sample in metric.samples]
            yield metric
