"""``draftline.v1.AdminService``: the calls of operators, and the conversion of metrics to its messages."""

from __future__ import annotations

import asyncio
import math
import tempfile
import time
from collections.abc import Iterable
from itertools import count
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric, Sample
from typing_extensions import override

from draftline.engine.errors import FieldViolation, InvalidRequestError, ProfilerError
from draftline.engine.server.grpc.handlers import Context, with_error_status
from draftline.engine.server.limits import MAX_ENTRIES, length_violations, refuse
from draftline.engine.server.state import ServerState
from draftline.v1 import admin_pb2 as pb
from draftline.v1.admin_pb2_grpc import AdminServiceServicer

MAX_PROFILE_S = 60.0
"""Longest profile in seconds. A trace grows by megabytes/s."""


class AdminService(AdminServiceServicer):
    """The service. It administers the engine of the server's state."""

    def __init__(self, state: ServerState, registry: CollectorRegistry) -> None:
        """``registry`` collects the server's metrics."""
        self._state = state
        folder = state.config.profile_dir
        self._profile_dir = None if folder is None else Path(folder)
        self._registry = registry
        self._profiles = count()

    @override
    @with_error_status
    async def GetStatistics(self, request: pb.GetStatisticsRequest, context: Context) -> pb.GetStatisticsResponse:
        return pb.GetStatisticsResponse(metrics=metric_messages(self._registry.collect()))

    @override
    @with_error_status
    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:
        refuse(*length_violations(request.request_ids, MAX_ENTRIES, "request_ids", "entries"))
        cancel = self._state.cancel
        return pb.AbortResponse(
            results=[pb.AbortResult(request_id=name, was_running=cancel(name)) for name in request.request_ids]
        )

    @override
    @with_error_status
    async def FlushPrefixCache(
        self, request: pb.FlushPrefixCacheRequest, context: Context
    ) -> pb.FlushPrefixCacheResponse:
        freed = await asyncio.wrap_future(self._state.engine.flush_prefix_cache())
        return pb.FlushPrefixCacheResponse(freed_blocks=freed)

    @override
    @with_error_status
    async def Profile(self, request: pb.ProfileRequest, context: Context) -> pb.ProfileResponse:
        seconds = request.duration.seconds + request.duration.nanos / 1e9
        if not 0 < seconds <= MAX_PROFILE_S:
            problem = f"must be more than 0 and at most {MAX_PROFILE_S:g} s, not {seconds:g} s"
            raise InvalidRequestError(FieldViolation("duration", problem))
        path = self._profile_path()
        engine = self._state.engine
        await asyncio.wrap_future(engine.start_profile())
        try:
            await asyncio.sleep(seconds)
        finally:
            stopped = engine.stop_profile(path)  # also if the call ends early
        await asyncio.wrap_future(stopped)
        trace = await asyncio.to_thread(path.read_bytes) if request.include_trace else b""
        return pb.ProfileResponse(path=str(path), trace=trace)

    def _profile_path(self) -> Path:
        if self._profile_dir is None:
            raise ProfilerError("the server has no folder for profiles; start it with --profile-dir")
        try:
            self._profile_dir.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self._profile_dir).close()  # before the profile: its trace would be lost
        except OSError as error:
            raise ProfilerError(f"--profile-dir {self._profile_dir}: cannot write there: {error.strerror}") from error
        return self._profile_dir / f"{time.strftime('%Y%m%d-%H%M%S')}-{next(self._profiles)}.json.gz"


_KINDS = {
    "gauge": pb.METRIC_KIND_GAUGE,
    "counter": pb.METRIC_KIND_COUNTER,
    "histogram": pb.METRIC_KIND_HISTOGRAM,
}


def metric_messages(families: Iterable[Metric]) -> list[pb.Metric]:
    """Convert Prometheus metrics."""
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
    """One message for each set of labels. Prometheus has one sample for each bucket."""
    found: dict[tuple[tuple[str, str], ...], pb.Sample] = {}
    for sample in family.samples:
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        message = found.setdefault(tuple(sorted(labels.items())), pb.Sample(labels=labels))
        _add(message.histogram, sample)
    return list(found.values())


def _add(histogram: pb.Histogram, sample: Sample) -> None:
    if sample.name.endswith("_bucket"):
        bound = sample.labels["le"]
        histogram.buckets.add(
            upper_bound=math.inf if bound == "+Inf" else float(bound), cumulative_count=round(sample.value)
        )
    elif sample.name.endswith("_sum"):
        histogram.sum = sample.value
