"""``grpc.health.v1`` with clients that do not read."""

from __future__ import annotations

import asyncio
import logging

import grpc
import grpc.aio
import pytest
from fake_engine import FakeEngine
from grpc_client import text_request
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse, HealthListRequest
from grpc_health.v1.health_pb2_grpc import HealthStub
from http2_client import call_without_reading
from patience import PATIENCE_S

from draftline.engine.server.grpc.listener import ADMIN_SERVICE, SERVICE
from draftline.engine.server.server import Server

WATCH = "/grpc.health.v1.Health/Watch"
GENERATE = f"/{SERVICE}/Generate"


async def test_a_watcher_that_reads_nothing_holds_up_neither_others_nor_the_server(
    server: Server, channel: grpc.aio.Channel, engine: FakeEngine
) -> None:
    silent = await call_without_reading(server.address, WATCH, b"")
    await asyncio.sleep(0.2)  # until the server writes to it
    async with asyncio.timeout(PATIENCE_S):
        watching = HealthStub(channel).Watch(HealthCheckRequest())
        assert (await watching.read()).status == HealthCheckResponse.NOT_SERVING
        await server.serve(engine)
        assert (await watching.read()).status == HealthCheckResponse.SERVING
        assert await server.drain()
    silent.close()


async def test_all_services_are_listed(server: Server, channel: grpc.aio.Channel, engine: FakeEngine) -> None:
    stub = HealthStub(channel)
    for status in (HealthCheckResponse.NOT_SERVING, HealthCheckResponse.SERVING):
        listed = (await stub.List(HealthListRequest())).statuses
        assert {name: each.status for name, each in listed.items()} == dict.fromkeys(
            ("", SERVICE, ADMIN_SERVICE), status
        )
        await server.serve(engine)


@pytest.mark.parametrize("method", [WATCH, GENERATE])
async def test_a_client_that_leaves_with_its_answer_unread_is_no_fault(
    method: str, server: Server, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    await server.serve(engine)
    request = text_request("a").SerializeToString() if method == GENERATE else b""
    with caplog.at_level(logging.WARNING):
        silent = await call_without_reading(server.address, method, request)
        await asyncio.sleep(0.2)
        silent.close()
        await asyncio.sleep(0.2)
    assert not caplog.records
