"""Processes that compile kernels: without a GPU, and outside the interpreter that other tests run kernels in."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import patience
import pytest
from patience import wait_until
from uninterpreted import run

from draftline.kernels.compile_workers import CompileJob, KernelCompileWorkers, nothing_compiled, triton_cache

_LAUNCHED = """
import sys
import torch
from triton import knobs
from triton.runtime import driver
from draftline.kernels.compile_workers import KernelCompileWorkers, CompileJob, _CompilerDriver
from draftline.kernels.triton.pointwise.activations import silu_mul

class Driver(_CompilerDriver):
    def get_current_stream(self, device):
        return 0

jobs = []

def launched(*, fn, compile, is_manual_warmup, **_):
    if not is_manual_warmup:
        jobs.append((fn.jit_function, CompileJob(fn.module, fn.name, compile["specialization_data"], 90)))
    return not is_manual_warmup

driver.set_active(Driver(90))
knobs.runtime.jit_cache_hook = launched
for columns in (32, 64, 96):
    silu_mul(torch.empty(4, columns))
"""

# One process does both, since most of its time is loading torch: it uses workers, and ends without stopping others.
_COMPILED_AND_LEFT = (
    _LAUNCHED
    + """
workers = KernelCompileWorkers(2)
workers.compile(CompileJob("draftline.kernels.triton.pointwise.activations", "no_such_kernel", "{}", 90))
for _, job in jobs:
    workers.compile(job)
numbers = list(workers.compiled())
assert sorted(numbers) == [1, 2, 3], numbers
found = []
knobs.compilation.listener = lambda *, cache_hit, **_: found.append(cache_hit)
for function, job in jobs:
    function.preload(job.specialization)
assert found == [True] * 3, found
import os
workers = KernelCompileWorkers(2, niceness=5)
from patience import wait_until
wait_until(lambda: os.getpriority(os.PRIO_PROCESS, workers._process.pid) == 5)
print(workers._process.pid, flush=True)
os._exit(7)
"""
)


_NONE = CompileJob("a.module", "a_kernel", "x" * 5000, 90)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    helpers = Path(patience.__file__).parent
    path = os.pathsep.join(filter(None, [str(helpers), os.environ.get("PYTHONPATH")]))
    cache = str(tmp_path_factory.mktemp("cache"))
    return run("-c", _COMPILED_AND_LEFT, PYTHONPATH=path, TRITON_CACHE_DIR=cache)


def test_others_find_what_they_compile(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 7, done.stderr
    assert "activations.no_such_kernel does not compile" in done.stderr


def test_none_outlives_who_started_them(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 7, done.stderr
    group = int(done.stdout)
    try:
        wait_until(lambda: not _running(group))  # they have to load torch first
    finally:
        if _running(group):
            os.killpg(group, signal.SIGKILL)


def test_stopping_them_ends_the_wait(caplog: pytest.LogCaptureFixture) -> None:
    workers = KernelCompileWorkers(1)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(list, workers.compiled())
        workers.stop()
        assert waiting.result(10) == []
    workers.compile(_NONE)
    assert list(workers.compiled()) == []
    assert not caplog.records


def test_sending_waits_for_nothing() -> None:
    workers = KernelCompileWorkers(1)
    os.killpg(workers._process.pid, signal.SIGSTOP)
    with ThreadPoolExecutor() as pool:
        sent = pool.submit(lambda: [workers.compile(_NONE) for _ in range(500)])
        try:
            sent.result(10)
        finally:
            workers.stop()


def test_where_they_die_the_wait_ends(caplog: pytest.LogCaptureFixture) -> None:
    workers = KernelCompileWorkers(1)
    os.killpg(workers._process.pid, signal.SIGKILL)
    assert list(workers.compiled()) == []
    assert "ended with -9" in caplog.text


def test_where_they_cannot_be_started_there_are_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    assert KernelCompileWorkers.start_if_useful() is None
    assert "/no/such/python" in caplog.text


def test_one_core_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    assert KernelCompileWorkers.start_if_useful() is None


@pytest.mark.parametrize(("files", "nothing"), [((), True), (("kernel",), False)])
def test_an_empty_cache_has_nothing(
    files: tuple[str, ...], nothing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in files:
        (tmp_path / name).mkdir()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert nothing_compiled() == nothing
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "absent"))
    assert nothing_compiled()


def test_a_cache_that_cannot_be_read_has_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file"))
    assert nothing_compiled()


@pytest.mark.parametrize("name", ["HOME", "TRITON_HOME"])
def test_the_cache_is_where_triton_has_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("TRITON_CACHE_DIR", "TRITON_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, str(tmp_path))
    assert triton_cache() == tmp_path / ".triton" / "cache"


def test_a_user_without_a_home_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container, where the user has a number but no name."""

    def unknown(user: int) -> None:
        raise KeyError(user)

    for name in ("TRITON_CACHE_DIR", "TRITON_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert triton_cache() == Path("~", ".triton", "cache")


def _running(group: int) -> bool:
    """Whether any process of a group runs; those that have ended and wait for their parent do not."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, _, its_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(its_group) == group and state != "Z":
            return True
    return False
