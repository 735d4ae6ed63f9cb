"""Deadlines: requests expire in order, and ended requests are not kept for long."""

from __future__ import annotations

import gc
import weakref

from byte_compilers import byte_compiler
from fake_engine import ByteTokenizer, fake_info
from tiny import tiny_core

from draftline.engine.params import SamplingParams
from draftline.engine.protocol import GenerateRequest
from draftline.engine.request import deadlines
from draftline.engine.request.deadlines import Deadlines
from draftline.engine.request.request import Request, RequestBuilder


def request(name: str, timeout_s: float | None, now: float = 100.0) -> Request:
    builder = RequestBuilder(fake_info(), ByteTokenizer(), 5.0, byte_compiler())  # type: ignore[arg-type]
    return builder.build(name, GenerateRequest("x", timeout_s=timeout_s), lambda pairs: None, now)


def names(watched: Deadlines, now: float) -> list[str]:
    return [each.request_id for each in watched.expired(now)]


def test_each_expires_once_in_the_order_of_deadlines() -> None:
    watched = Deadlines()
    for name, timeout in (("late", 9.0), ("never", None), ("soon", 1.0), ("sooner", 0.7)):
        watched.add(request(name, timeout))
    assert names(watched, 100.5) == []
    assert names(watched, 101.0) == ["sooner", "soon"]
    assert names(watched, 1e9) == ["late"]


def test_requests_that_have_ended_do_not_expire() -> None:
    watched = Deadlines()
    watched.add(request("ended", 1.0))
    watched.drop("ended")
    watched.drop("has none")
    assert names(watched, 1e9) == []


def test_an_id_may_be_used_again() -> None:
    watched = Deadlines()
    watched.add(request("again", 1.0))
    watched.drop("again")
    watched.add(request("again", 9.0))
    assert names(watched, 101.0) == []
    assert names(watched, 109.0) == ["again"]


def test_long_deadlines_of_short_requests_do_not_pile_up() -> None:
    watched = Deadlines()
    watched.add(request("running", 1000.0))
    for _ in range(2 * deadlines._MIN_SWEEP):
        watched.add(request("short", 1000.0))
        watched.drop("short")
    assert len(watched._heap) <= deadlines._MIN_SWEEP
    assert names(watched, 1e9) == ["running"]


def test_a_request_that_has_ended_is_freed_before_its_deadline() -> None:
    def sink(pairs: object) -> None:
        """Takes the updates. Only the request refers to it."""

    core = tiny_core()
    builder = RequestBuilder(core.info, core.tokenizer, 5.0, core.compiler)
    wanted = GenerateRequest((1, 2, 3), SamplingParams(max_tokens=2), timeout_s=1e6)
    core.add(builder.build("short", wanted, sink, core.now()))
    kept = weakref.ref(sink)
    del sink
    while core.has_work:
        core.step()
    gc.collect()
    assert kept() is None
