"""What is rehearsed is compiled, and by whom. `tests/gpu/test_compile_ahead.py` has the same with real kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from fake_triton import Function, Kernel, Workers
from triton import knobs

from draftline.kernels.triton.compile import ahead
from draftline.kernels.triton.compile.ahead import CompileAhead


@contextmanager
def _no_capture(device: torch.device) -> Iterator[None]:
    yield


@pytest.fixture
def function() -> Function:
    return Function()


@pytest.fixture
def workers(function: Function, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workers:
    (tmp_path / "something").touch()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(ahead, "never_run", _no_capture)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    workers = Workers(function)
    monkeypatch.setattr(ahead, "KernelCompileWorkers", workers)
    return workers


def compile_ahead() -> CompileAhead:
    return CompileAhead(torch.device("cuda:0"))


def rehearse(function: Function, variants: Iterable[Any]) -> CompileAhead:
    begun = compile_ahead()
    with begun.rehearsal():
        for variant in variants:
            function("" + variant)
    begun.load()
    return begun


def test_what_is_on_disk_is_not_missing(function: Function, workers: Workers) -> None:
    function.disk |= {"a", "b"}
    begun = rehearse(function, "abab")
    assert not begun.missing
    assert not function.compiled
    assert not workers.started
    assert sorted(function.device_caches[0][0]) == ["a", "b"]


def test_a_few_are_compiled_here(function: Function, workers: Workers) -> None:
    function.disk.add("known")
    begun = compile_ahead()
    with begun.rehearsal():
        for variant in ("known", "a", "b", "b", "c", "known"):
            function(variant)
        assert function.compiled == ["a"], "the first tells that others are missing"
    begun.load()
    assert begun.missing
    assert sorted(function.compiled) == ["a", "b", "c"]
    assert not workers.started
    function("b")
    assert function.device_caches[0][0]["b"].launches == 1
    assert sorted(function.compiled) == ["a", "b", "c"]


def test_many_are_compiled_by_others(function: Function, workers: Workers) -> None:
    rehearse(function, "abcdefgabcdefg")
    assert workers.started == 1
    assert workers.submitted == list("bcdefg")
    assert function.compiled == ["a"]
    assert all(isinstance(kernel, Kernel) for kernel in function.device_caches[0][0].values())


def test_where_nothing_was_ever_compiled_others_start_at_once(
    function: Function, workers: Workers, tmp_path: Path
) -> None:
    (tmp_path / "something").unlink()
    begun = compile_ahead()
    assert workers.started == 1
    assert not workers.stopped
    with begun.rehearsal():
        for variant in "ab":
            function(variant)
    assert workers.submitted == ["a", "b"]
    assert workers.started == 1
    assert function.compiled == []


def test_one_core_compiles_alone(function: Function, workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "start_if_useful", lambda: None)
    rehearse(function, "abcdefg")
    assert not workers.started
    assert sorted(function.compiled) == list("abcdefg")


def test_what_others_leave_is_compiled_here(
    function: Function, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "compiled", lambda: iter((2, 0)))
    rehearse(function, "abcdefg")
    assert workers.started == 1
    assert sorted(function.compiled) == list("abcdefg")
    assert isinstance(function.device_caches[0][0]["d"], Kernel)


def test_what_others_compile_is_loaded_meanwhile(
    function: Function, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = Event()
    preload = function.preload

    def preload_and_tell(variant: str) -> Kernel | None:
        kernel = preload(variant)
        if variant == "c" and isinstance(kernel, Kernel):
            loaded.set()
        return kernel

    def compiled() -> Iterator[int]:
        function.disk.add("c")
        yield 1
        assert loaded.wait(10)
        function.disk.update("bdefg")
        yield from (0, 2, 3, 4, 5)

    monkeypatch.setattr(function, "preload", preload_and_tell)
    monkeypatch.setattr(workers, "compiled", compiled)
    rehearse(function, "abcdefg")
    assert function.compiled == ["a"]


def test_what_is_postponed_is_left(function: Function, workers: Workers) -> None:
    begun = compile_ahead()
    with begun.rehearsal():
        for variant in "ab":
            function(variant)
        with begun.postponing():
            for variant in "abc":
                function(variant)
        function("d")
    kernels = function.device_caches[0][0]
    assert list(kernels) == ["a"], "no placeholder stays"
    begun.load()
    assert sorted(kernels) == ["a", "b", "d"]
    assert [kernel.key for kernel in begun.postponed] == ["c"]


def test_what_does_not_compile_raises(function: Function, workers: Workers) -> None:
    with pytest.raises(RuntimeError, match="does not compile"):
        rehearse(function, ["a", "broken"])


def test_a_rehearsal_that_fails_leaves_nothing_behind(function: Function, workers: Workers) -> None:
    hooks = knobs.runtime.jit_cache_hook, knobs.compilation.listener
    with pytest.raises(TypeError, match="str"):
        rehearse(function, ["a", "b", 3])
    assert (knobs.runtime.jit_cache_hook, knobs.compilation.listener) == hooks
    assert list(function.device_caches[0][0]) == ["a"]
    function("b")
    assert function.compiled == ["a", "b"]


def test_others_that_were_started_already_are_used(function: Function, workers: Workers) -> None:
    given: Any = Workers(function)
    begun = CompileAhead(torch.device("cuda:0"), given)
    with begun.rehearsal():
        function("a")
        function("b")
    assert given.submitted == ["a", "b"]
    assert not workers.started


def test_closing_stops_others(function: Function, workers: Workers, tmp_path: Path) -> None:
    (tmp_path / "something").unlink()
    compile_ahead().close()
    assert workers.stopped
