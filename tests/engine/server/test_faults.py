"""Faults in a step, over a real socket to a real engine: which requests fail, and which faults end the engine."""

from __future__ import annotations

import asyncio
import functools
import types

import grpc
import grpc.aio
import pytest
import torch
from grpc_client import SessionClient, text_request
from grpc_health.v1 import health_pb2, health_pb2_grpc
from stepped_engine import SteppedEngine

from draftline.engine.errors import DeviceLostError
from draftline.engine.runner.memory import check_device
from draftline.engine.runner.runner import Runner
from draftline.engine.server.server import Server
from draftline.engine.streaming.output_state import OutputState
from draftline.v1 import engine_pb2 as pb
from draftline.v1.engine_pb2_grpc import InferenceServiceStub


def end_of(response: pb.SessionResponse) -> dict[str, str]:
    """How a request ended, if this is its last message."""
    if response.HasField("error"):
        return {response.request_id: grpc.StatusCode((response.error.code, code_name(response.error.code))).name}
    return {response.request_id: "finished"} if response.HasField("finished") else {}


async def ends(client: SessionClient) -> dict[str, str]:
    """How each request of the session ended that has not ended yet."""
    found: dict[str, str] = {}
    async for response in client.rest():
        found |= end_of(response)
    return found


HIT = 24
"""The length of the prompts that a faulty step fails with."""


@functools.cache
def code_name(code: int) -> str:
    [name] = [status.value[1] for status in grpc.StatusCode if status.value[0] == code]
    return str(name)


def request(text: str, max_tokens: int = 6):  # type: ignore[no-untyped-def]
    return text_request(text * 8, max_tokens=max_tokens, ignore_eos=True, temperature=0)


@pytest.mark.parametrize("where", ["launch", "results"])
async def test_a_fault_in_a_step_fails_its_requests_and_the_engine_goes_on(
    where: str, server: Server, channel: grpc.aio.Channel, stepped: SteppedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = Runner.launch
    fault = RuntimeError("a kernel failed")

    def faulty(self: Runner, plan, *more):  # type: ignore[no-untyped-def]
        if not any(row.sequence.prompt_len == HIT for row in plan.rows):
            return launch(self, plan, *more)
        if where == "launch":
            raise fault
        launch(self, plan, *more)

        def results():  # type: ignore[no-untyped-def]
            raise fault

        return types.SimpleNamespace(results=results, watch=None, capture_s=0.0)

    monkeypatch.setattr(Runner, "launch", faulty)
    await server.serve(stepped)
    client = SessionClient(InferenceServiceStub(channel))
    await client.submit("before", request("a", max_tokens=2))
    await stepped.steps(2)
    for name in ("hit", "hit too"):
        await client.submit(name, text_request("h" * HIT))
    stepped.release()
    ended: dict[str, str] = {}
    while not {"hit", "hit too"} <= ended.keys():  # in one step or two
        ended |= end_of(await client.next())
    await client.submit("after", request("b"))
    assert ended | await ends(client) == {
        "before": "finished",
        "hit": "INTERNAL",
        "hit too": "INTERNAL",
        "after": "finished",
    }
    await stepped.freed()


@pytest.mark.parametrize("part", ["keep", "updates"])
async def test_a_fault_of_one_output_fails_its_request_alone(
    server: Server, channel: grpc.aio.Channel, stepped: SteppedEngine, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    sound = getattr(OutputState, part)

    def faulty(self: OutputState, *step):  # type: ignore[no-untyped-def]
        if self.sequence.prompt_len == 9 and self.sequence.index == 1:
            raise ValueError("no such character")
        return sound(self, *step)

    monkeypatch.setattr(OutputState, part, faulty)
    await server.serve(stepped)
    client = SessionClient(InferenceServiceStub(channel))
    await client.submit("bad", text_request("x" * 9, max_tokens=6, n=3, ignore_eos=True))
    await client.submit("good", request("y"))
    stepped.release()
    assert await ends(client) == {"bad": "INTERNAL", "good": "finished"}
    await stepped.freed()


async def test_a_lost_device_ends_the_engine_and_health_says_so(
    server: Server, channel: grpc.aio.Channel, stepped: SteppedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(self: Runner, *plan: object) -> None:
        raise DeviceLostError("an illegal memory access was encountered")

    await server.serve(stepped)
    health = health_pb2_grpc.HealthStub(channel)
    client = SessionClient(InferenceServiceStub(channel))
    await client.submit("a", request("a", max_tokens=50))
    await stepped.steps(2)
    monkeypatch.setattr(Runner, "launch", lost)
    monkeypatch.setattr(Runner, "check_device", lost)
    stepped.release()
    while not (response := await client.next()).HasField("error"):
        pass
    assert response.error.code == grpc.StatusCode.UNAVAILABLE.value[0]
    fault = await asyncio.wrap_future(stepped.stopped)
    assert "an illegal memory access" in str(fault)
    watch = health.Watch(health_pb2.HealthCheckRequest())
    while (await watch.read()).status != health_pb2.HealthCheckResponse.NOT_SERVING:
        pass
    await client.submit("b", request("b"))
    assert (await client.error("b")).code == grpc.StatusCode.UNAVAILABLE.value[0]


def test_a_device_that_cannot_compute_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    check_device(torch.device("cpu"))

    def fails(device: torch.device) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with …")

    monkeypatch.setattr(torch.cuda, "synchronize", fails)
    with pytest.raises(DeviceLostError, match=r"^cuda:0 computes nothing any more: CUDA error: an illegal [^\n]*$"):
        check_device(torch.device("cuda:0"))
