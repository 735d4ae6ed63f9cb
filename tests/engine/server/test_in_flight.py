"""The life of a request without a transport: as any face runs it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from endless_work import EndlessWork
from fake_engine import FakeEngine
from patience import PATIENCE_S, until

from draftline.engine.errors import (
    DeadlineExceededError,
    EngineStoppedError,
    InvalidRequestError,
    QueueFullError,
    StepFailedError,
)
from draftline.engine.outputs import Delta, Finished
from draftline.engine.params import Constraint, SamplingParams
from draftline.engine.protocol import GenerateRequest
from draftline.engine.server.access import Caller, OpenAccess
from draftline.engine.server.codes import CANCELLED, code_name
from draftline.engine.server.config import ServerConfig
from draftline.engine.server.http.call import HttpCall
from draftline.engine.server.http.fields import Names
from draftline.engine.server.http.generation import Generation, PromptRequest
from draftline.engine.server.in_flight import InFlightRequest
from draftline.engine.server.state import CUT_OFF, ServerState
from draftline.engine.server.telemetry.reports import Origin, RequestReport
from draftline.engine.streaming.mailbox import Hub, Mailbox


class FakeCall:
    """A call of a client that may have one request in flight."""

    def __init__(self) -> None:
        self.caller = Caller("client", admin=False, max_requests=1)
        self.origin = Origin("Fake", "somewhere", self.caller.name)
        self.client_id = "mine"

    def outcome(self, error: BaseException) -> str:
        return code_name(error) if isinstance(error, Exception) else CANCELLED


class Face:
    """A server's state, and the reports of its requests."""

    def __init__(self) -> None:
        self.reports: list[RequestReport] = []
        hub = Hub(asyncio.get_running_loop())
        self.state = ServerState(ServerConfig(), OpenAccess(admin=False), hub, [self.reports.append])
        self.call = FakeCall()

    def request(self) -> InFlightRequest:
        return InFlightRequest(self.state, self.call, self.state.next_id(), "mine", Mailbox(self.state.hub))

    async def run(self, prompt: str, max_tokens: int = 4, timeout_s: float | None = None) -> str:
        """The text of a request."""
        with self.request() as request:
            request.admit()
            await request.submit(GenerateRequest(prompt, SamplingParams(max_tokens=max_tokens), timeout_s=timeout_s))
            return "".join([update.text async for update in request.updates() if isinstance(update, Delta)])

    def codes(self) -> list[str]:
        return [report.code for report in self.reports]


@pytest.fixture
async def face(engine: FakeEngine) -> Face:
    face = Face()
    face.state.serve(engine)
    return face


async def test_a_request_is_served_reported_and_released(face: Face) -> None:
    assert await face.run("abc") == "abca"
    assert await face.run("xy") == "xyxy"
    await face.state.wait_idle()
    assert face.codes() == ["OK", "OK"]
    first = face.reports[0]
    assert (first.request_id, first.client_id, first.origin.caller) == ("s0", "mine", "client")
    assert [output.usage.completion_tokens for output in first.outputs] == [4]


@pytest.mark.parametrize(
    ("prompt", "error", "code"),
    [("", InvalidRequestError, "INVALID_ARGUMENT"), ("FAIL", StepFailedError, "INTERNAL")],
)
async def test_an_error_is_reported_and_makes_room(
    prompt: str, error: type[Exception], code: str, face: Face, engine: FakeEngine
) -> None:
    with pytest.raises(error):
        await face.run(prompt)
    assert face.codes() == [code]
    assert await face.run("abc") == "abca"


async def test_a_cancelled_task_cancels_its_request(face: Face, engine: FakeEngine) -> None:
    engine.hold()
    task = asyncio.create_task(face.run("abc", max_tokens=100))
    await asyncio.to_thread(engine.wait_running, 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.cancelled == ["s0"]
    assert face.codes() == ["CANCELLED"]
    await face.state.wait_idle()
    engine.release()


def compiling(face: Face, engine: FakeEngine) -> tuple[EndlessWork, asyncio.Task[list[str]]]:
    """A request for two outputs whose constraint compiles, and how these finish."""
    endless: Any = EndlessWork()
    engine.compile_with(endless)

    async def run() -> list[str]:
        with face.request() as request:
            request.admit()
            await request.submit(GenerateRequest("a", SamplingParams(n=2), Constraint(regex="a")))
            return [update.finish_reason.name async for update in request.updates() if isinstance(update, Finished)]

    return endless, asyncio.create_task(run())


async def test_a_request_can_be_cancelled_while_its_constraint_compiles(face: Face, engine: FakeEngine) -> None:
    endless, task = compiling(face, engine)
    await until(lambda: bool(endless.futures))
    assert face.state.cancel("s0")
    assert face.state.cancel("s0"), "it has not ended yet"
    assert await task == ["CANCELLED", "CANCELLED"]
    assert endless.futures[0].cancelled(), "nothing else waits for the constraint"
    assert not face.state.cancel("s0")
    assert face.codes() == ["CANCELLED"]


async def test_a_request_that_is_cancelled_at_once_compiles_nothing(face: Face, engine: FakeEngine) -> None:
    engine.compile_with(EndlessWork())  # type: ignore[arg-type]
    with face.request() as request:
        request.admit()
        assert request.cancel()
        await request.submit(GenerateRequest("a", constraint=Constraint(regex="a")))
        [update] = [update async for update in request.updates()]
    assert isinstance(update, Finished)


async def test_a_request_is_cut_off_while_its_constraint_compiles(face: Face, engine: FakeEngine) -> None:
    endless, task = compiling(face, engine)
    await until(lambda: bool(endless.futures))
    face.state.cut_off()
    with pytest.raises(EngineStoppedError, match=CUT_OFF):
        await task
    assert [(report.code, report.reason) for report in face.reports] == [("UNAVAILABLE", CUT_OFF)]


async def test_a_request_beyond_the_callers_limit_is_refused(face: Face, engine: FakeEngine) -> None:
    engine.hold()
    task = asyncio.create_task(face.run("abc"))
    await asyncio.to_thread(engine.wait_running, 1)
    with pytest.raises(QueueFullError):
        await face.run("xyz")
    assert face.codes() == ["RESOURCE_EXHAUSTED"]
    engine.release()
    assert await task == "abca"


async def test_nothing_is_admitted_before_an_engine_serves_or_while_the_server_drains(engine: FakeEngine) -> None:
    face = Face()
    with pytest.raises(EngineStoppedError, match="still loading"):
        await face.run("abc")
    face.state.serve(engine)
    assert face.state.status == "ready"
    assert await face.run("abc") == "abca"
    face.state.drain()
    assert face.state.status == "draining"
    with pytest.raises(EngineStoppedError, match="shutting down"):
        await face.run("abc")
    assert face.codes() == ["UNAVAILABLE", "OK", "UNAVAILABLE"]


async def test_a_deadline_ends_a_request_whose_engine_hangs(face: Face, engine: FakeEngine) -> None:
    engine.hold()
    with pytest.raises(DeadlineExceededError):
        await asyncio.wait_for(face.run("abc", timeout_s=0.01), PATIENCE_S)
    assert face.codes() == ["DEADLINE_EXCEEDED"]
    assert engine.cancelled == ["s0"]
    await face.state.wait_idle()
    engine.release()


async def test_an_output_that_ended_in_time_is_read_after_its_deadline(face: Face, engine: FakeEngine) -> None:
    generation = Generation(face.state, cast(HttpCall, face.call))
    sampling = SamplingParams(max_tokens=4)
    await generation.start([PromptRequest(GenerateRequest("abc", sampling, timeout_s=PATIENCE_S), Names(()))])
    await until(lambda: len(generation._mailbox) == 2)  # the text, and its end
    face.state.requests["s0"].fail(DeadlineExceededError())
    [output] = await generation.outputs()
    assert output.outputs[0].text == "abca"
    assert face.codes() == ["OK"]


@pytest.mark.parametrize("how", ["cancel", "cut off", "timeout"])
async def test_a_request_can_be_ended_while_its_prompt_s_ids_are_made(
    how: str, face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = EndlessWork()
    monkeypatch.setattr(face.state, "_tokenizers", endless)
    generation = Generation(face.state, cast(HttpCall, face.call))
    request = GenerateRequest("abc", timeout_s=0.01 if how == "timeout" else None)

    async def run() -> str | None:
        await generation.start([PromptRequest(request, Names(()), needs_ids=True)])
        [output] = await generation.outputs()
        assert list(generation.submitted[0].token_ids) == []
        return output.outputs[0].finish_reason

    task = asyncio.create_task(run())
    await until(lambda: bool(endless.futures))
    match how:
        case "cancel":
            assert face.state.cancel("s0")
            assert await task == "cancelled"
        case "cut off":
            face.state.cut_off()
            with pytest.raises(EngineStoppedError, match=CUT_OFF):
                await task
        case "timeout":
            with pytest.raises(DeadlineExceededError):
                await task
    assert endless.futures[0].cancelled()
    generation.close()


async def test_closing_twice_has_no_effect(face: Face) -> None:
    request = face.request()
    request.admit()
    request.close()
    request.close(ValueError("late"))
    assert face.codes() == ["OK"]
    face.call.caller.admit()  # there is room for exactly one
    with pytest.raises(QueueFullError):
        face.call.caller.admit()
