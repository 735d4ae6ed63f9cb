"""``ServerMetrics``: a server's metrics by name, for programs that measure it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc
import grpc.aio

from draftline.engine.client.access import call_metadata
from draftline.engine.client.channel import open_channel
from draftline.engine.client.tls import Tls
from draftline.v1 import admin_pb2 as pb
from draftline.v1.admin_pb2_grpc import AdminServiceStub

_PREFIX = "draftline_"


class ServerMetrics:
    """The metrics of a server's AdminService, over a connection of its own."""

    def __init__(self, address: str, token: str | None, tls: Tls | None) -> None:
        """Connect when metrics are first read. ``tls`` is None for plaintext."""
        self._channel = open_channel(address, tls)
        self._metadata = call_metadata(token)

    async def read(self, timeout: float) -> Mapping[str, float] | None:
        """The metrics by name, without the common prefix, added up over all labels.

        Returns:
            None where the server has no such service, refuses the call, or does not answer within ``timeout`` seconds.
        """
        stub: Any = AdminServiceStub(self._channel)
        try:
            answer = await stub.GetStatistics(pb.GetStatisticsRequest(), metadata=self._metadata, timeout=timeout)
        except grpc.aio.AioRpcError:
            return None
        return {
            metric.name.removeprefix(_PREFIX): sum(sample.number for sample in metric.samples)
            for metric in answer.metrics
        }

    async def close(self) -> None:
        """Disconnect."""
        await self._channel.close()
