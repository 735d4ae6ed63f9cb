"""Deadlines: requests expire in order, and ended requests are not kept for long."""

from __future__ import annotations

from fake_engine import ByteTokenizer, fake_info

from draftline.engine.protocol import GenerateRequest
from draftline.engine.request import deadlines
from draftline.engine.request.deadlines import Deadlines
from draftline.engine.request.request import Request, RequestBuilder


def request(name: str, timeout_s: float | None, now: float = 100.0) -> Request:
    builder = RequestBuilder(fake_info(), ByteTokenizer(), 5.0)  # type: ignore[arg-type]
    return builder.build(name, GenerateRequest("x", timeout_s=timeout_s), lambda pairs: None, now)


def names(watched: Deadlines, now: float) -> list[str]:
    return [each.request_id for each in watched.expired(now)]


def test_each_expires_once_in_the_order_of_deadlines() -> None:
    watched = Deadlines()
    for name, timeout in (("late", 9.0), ("never", None), ("soon", 1.0), ("also soon", 1.0)):
        watched.add(request(name, timeout))
    assert names(watched, 100.5) == []
    assert names(watched, 101.0) == ["soon", "also soon"]
    assert names(watched, 1e9) == ["late"]


def test_ended_requests_are_forgotten_before_their_time() -> None:
    watched = Deadlines()
    running = request("running", 1000.0)
    watched.add(running)
    for _ in range(2 * deadlines._MIN_SWEEP):
        short = request("short", 1000.0)
        short.sequences[0].finished = True
        watched.add(short)
    kept = names(watched, 1e9)
    assert "running" in kept
    assert len(kept) <= deadlines._MIN_SWEEP + 1
