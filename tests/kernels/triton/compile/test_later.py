"""What is recorded at the start is compiled behind it, by other processes."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import pytest
import torch
from fake_triton import Function, Kernel, Workers
from triton import knobs

from draftline.kernels.triton.compile import ahead, later
from draftline.kernels.triton.compile.ahead import CompileAhead
from draftline.kernels.triton.compile.later import CompileLater


@contextmanager
def _no_capture(device: torch.device) -> Iterator[None]:
    yield


@pytest.fixture
def function() -> Function:
    return Function()


@pytest.fixture
def workers(function: Function, monkeypatch: pytest.MonkeyPatch) -> Workers:
    monkeypatch.setattr(ahead, "never_run", _no_capture)
    monkeypatch.setattr(ahead, "nothing_compiled", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    workers = Workers(function)

    def start(processes: int, niceness: int) -> Workers:
        assert processes >= 1
        assert niceness == 19, "steps come first"
        workers.started += 1
        return workers

    monkeypatch.setattr(later, "KernelCompileWorkers", start)
    return workers


@pytest.mark.parametrize(("cores", "processes"), [(1, 1), (4, 1), (16, 4), (64, 8)])
def test_the_engine_keeps_most_cores(
    cores: int, processes: int, function: Function, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    monkeypatch.setattr(later, "KernelCompileWorkers", lambda count, niceness: started.append(count) or workers)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    recorded(function, "one").run()
    assert started == [processes]


def recorded(function: Function, *variants: str) -> CompileLater:
    begun = CompileAhead(torch.device("cuda:0"))
    begun.missing = True
    with begun.rehearsal(), begun.postponing():
        for variant in variants:
            function(variant)
    return CompileLater(torch.device("cuda:0"), begun.postponed)


def test_recorded_kernels_neither_run_nor_are_compiled_here(function: Function, workers: Workers) -> None:
    function("known")
    made = recorded(function, "known", "one", "two", "one")
    kernels = function.device_caches[0][0]
    assert list(kernels) == ["known"]
    assert knobs.runtime.jit_cache_hook is None
    made.run()
    assert workers.submitted == ["one", "two"]
    assert function.compiled == ["known"]
    assert set(kernels) == {"known", "one", "two"}
    function("two")
    assert isinstance(kernels["two"], Kernel)
    assert kernels["two"].launches == 1


def test_steps_go_on_between_two_kernels_that_are_loaded(
    function: Function, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading takes the device and Python's lock."""
    loaded: list[tuple[int, int]] = []
    made = recorded(function, "one", "two", "three")
    assert made.left() == 3
    monkeypatch.setattr(later.time, "sleep", lambda _: loaded.append((len(function.device_caches[0][0]), made.left())))
    made.run()
    assert loaded == [(1, 2), (2, 1), (3, 0)]


def test_an_engine_loads_its_kernels_while_another_one_records(function: Function, workers: Workers) -> None:
    first, second = recorded(function, "one", "two"), CompileAhead(torch.device("cuda:0"))
    second.missing = True
    kernels = function.device_caches[0][0]
    with second.rehearsal():
        function("two")
        first.run()
        function("three")
    assert {name: type(kernel) for name, kernel in kernels.items()} == {"one": Kernel, "two": Kernel}


def test_a_kernel_that_is_wanted_meanwhile_is_compiled_at_once(function: Function, workers: Workers) -> None:
    made = recorded(function, "one")
    function("one")
    assert function.compiled == ["one"]
    made.run()
    function("one")
    assert function.compiled == ["one"]


def test_where_processes_fail_nothing_is_compiled_here(
    function: Function, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Workers, "compiled", lambda self: iter(()))
    made = recorded(function, "one")
    made.run()
    assert not made.left(), "no benchmark may wait for it"
    assert not function.device_caches[0][0]
    assert function.compiled == []


def test_failures_are_logged(
    function: Function, workers: Workers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none_start(processes: int, niceness: int) -> Any:
        raise OSError("no more processes")

    monkeypatch.setattr(later, "KernelCompileWorkers", none_start)
    with caplog.at_level(logging.ERROR):
        recorded(function, "one").run()
    assert "kernels could not be compiled in the background" in caplog.text


@pytest.mark.parametrize("where", ["compiling", "loading"])
def test_the_interpreter_ends_after_the_thread(
    function: Function, workers: Workers, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Python ends a daemon thread wherever it is; within a C++ call, that aborts the process."""
    at_exit: list[tuple[Callable[[Thread], None], Thread]] = []
    monkeypatch.setattr(later.atexit, "register", lambda call, thread: at_exit.append((call, thread)))
    reached, ended = Event(), Event()

    def busy(_: object) -> bool:
        reached.set()
        return ended.wait(10)

    monkeypatch.setattr(Workers, "stop", lambda self: ended.set())
    if where == "compiling":
        monkeypatch.setattr(Workers, "compiled", lambda self: iter((0,) * (not busy(self))))
    else:
        monkeypatch.setattr(later.time, "sleep", busy)
    recorded(function, "one", "two").start()
    ((call, thread),) = at_exit
    assert reached.wait(10)
    call(thread)
    assert ended.is_set()
    assert not thread.is_alive()
    assert len(function.device_caches[0][0]) == (0 if where == "compiling" else 1), "what is left is not loaded"


def test_nothing_recorded_starts_no_process(function: Function, workers: Workers) -> None:
    recorded(function).start()
    assert not workers.started
