"""``draftline.v1.AdminService``: what an operator asks of a running server."""

from __future__ import annotations

import asyncio
import time
from itertools import count
from pathlib import Path

from prometheus_client import CollectorRegistry

from draftline.engine import convert_metrics
from draftline.engine.answering import Context, answers_errors
from draftline.engine.errors import InvalidRequestError, ProfilerError, Violation
from draftline.engine.front import Front
from draftline.v1 import admin_pb2 as pb
from draftline.v1.admin_pb2_grpc import AdminServiceServicer

MAX_PROFILE_S = 60.0
"""Longest profile; a trace grows by megabytes a second."""

MAX_IDS = 4096
"""Requests that one call can abort."""


class AdminService(AdminServiceServicer):
    """The service, over whatever engine the front's gate holds."""

    def __init__(self, front: Front, registry: CollectorRegistry) -> None:
        """``registry`` has the server's metrics."""
        self._gate = front.gate
        folder = front.config.profile_dir
        self._profile_dir = None if folder is None else Path(folder)
        self._registry = registry
        self._profiles = count()

    @answers_errors
    async def GetStatistics(self, request: pb.GetStatisticsRequest, context: Context) -> pb.GetStatisticsResponse:
        """See the proto."""
        return pb.GetStatisticsResponse(metrics=convert_metrics.metrics(self._registry.collect()))

    @answers_errors
    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:
        """See the proto."""
        if len(request.request_ids) > MAX_IDS:
            problem = f"has {len(request.request_ids)} entries; at most {MAX_IDS} fit"
            raise InvalidRequestError(Violation("request_ids", problem))
        engine = self._gate.engine
        return pb.AbortResponse(
            results=[pb.AbortResult(request_id=name, was_running=engine.cancel(name)) for name in request.request_ids]
        )

    @answers_errors
    async def FlushPrefixCache(
        self, request: pb.FlushPrefixCacheRequest, context: Context
    ) -> pb.FlushPrefixCacheResponse:
        """See the proto."""
        freed = await asyncio.wrap_future(self._gate.engine.flush_prefix_cache())
        return pb.FlushPrefixCacheResponse(freed_blocks=freed)

    @answers_errors
    async def Profile(self, request: pb.ProfileRequest, context: Context) -> pb.ProfileResponse:
        """See the proto. A call that ends early ends the profile, which is written all the same."""
        seconds = request.duration.seconds + request.duration.nanos / 1e9
        if not 0 < seconds <= MAX_PROFILE_S:
            problem = f"must be more than 0 and at most {MAX_PROFILE_S:g} s, not {seconds:g} s"
            raise InvalidRequestError(Violation("duration", problem))
        path = self._profile_path()
        engine = self._gate.engine
        await asyncio.wrap_future(engine.start_profile())
        try:
            await asyncio.sleep(seconds)
        finally:
            stopped = engine.stop_profile(path)
        await asyncio.wrap_future(stopped)
        return pb.ProfileResponse(path=str(path))

    def _profile_path(self) -> Path:
        if self._profile_dir is None:
            raise ProfilerError("the server has no folder for profiles; start it with --profile-dir")
        self._profile_dir.mkdir(parents=True, exist_ok=True)
        return self._profile_dir / f"{time.strftime('%Y%m%d-%H%M%S')}-{next(self._profiles)}.json.gz"
