"""What every test runs under: few threads, no network, and no test that needs a GPU where there is none."""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uninterpreted import Uninterpreted

# Read once, when torch loads its OpenMP runtime, which is after this file. Tests run in several processes; a runtime
# that spins while it waits, or takes every core, makes each of them many times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GOMP_SPINCOUNT", "2000")
# Whatever a test needs is made by it or comes with the development dependencies.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# gRPC logs every connection that a test breaks on purpose.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
# Triton decides while it is imported whether it compiles or interprets kernels, and more than its own tests import it
# (transformers' models do). Without a driver only the interpreter can run them.
try:
    ctypes.CDLL("libcuda.so.1")
except OSError:
    os.environ.setdefault("TRITON_INTERPRET", "1")
# Compiled constraints are kept for as long as the tests run.
os.environ["XDG_CACHE_HOME"] = _caches = tempfile.mkdtemp(prefix="draftline-caches-")
atexit.register(shutil.rmtree, _caches, ignore_errors=True)
# Processes that build the same module at once replace it while another loads it, and Python, which knows a module by its
# inode, can then mistake it for the next one. So each process of pytest-xdist has a cache of its own.
if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    os.environ["TRITON_CACHE_DIR"] = str(
        Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache") / worker
    )

import pytest
from hypothesis import settings

from draftline.structured import worker_processes

# The default run is a gate: the same examples each time, so that a commit passes or fails by what it changes. The thorough one
# draws others every time; see `examples`.
settings.register_profile("gate", derandomize=True)
settings.register_profile("thorough")
settings.load_profile("gate")

# Collecting imports everything and makes a hundred thousand objects, none of them garbage.
gc.disable()


def pytest_configure() -> None:
    """Refuse to test compiled modules: they would hide changes of their sources, and tests replace methods, which these do not allow."""
    if any(Path(__file__).parents[1].joinpath("engine").rglob("*.so")):
        pytest.exit("the engine is compiled: `make uncompile` first", returncode=4)


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--shared-kib``: run kernels on a GPU as on one with less shared memory."""
    parser.addoption("--shared-kib", type=int, help="shared memory of one program on a GPU, at most, in KiB")


_NICE = worker_processes._NICE


@pytest.fixture(autouse=True, scope="session")
def _no_lowest_priority() -> Iterator[None]:
    """Constraints compile as fast as tests run. At the lowest priority they would wait for every other process of the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_processes, "_NICE", 0)
        yield


@pytest.fixture
def lowest_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker processes that a test starts have the priority that they have in production."""
    monkeypatch.setattr(worker_processes, "_NICE", _NICE)


@pytest.fixture(autouse=True, scope="session")
def _shared_memory(request: pytest.FixtureRequest) -> Iterator[None]:
    """Apply ``--shared-kib``."""
    kib = request.config.getoption("--shared-kib")
    if kib is None:
        yield
        return
    from dataclasses import replace

    from draftline.kernels.triton.device import DeviceLimits  # loads Triton

    real = DeviceLimits.of
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            DeviceLimits,
            "of",
            staticmethod(lambda device: replace(real(device), shared_bytes=min(real(device).shared_bytes, kib << 10))),
        )
        yield


@pytest.fixture(scope="session")
def uninterpreted() -> Iterator[Uninterpreted]:
    """The process that compiles for all tests: it takes longer to import torch and Triton than to compile."""
    from uninterpreted import Uninterpreted

    with Uninterpreted() as process:
        yield process


@pytest.fixture(scope="module")
def shared_weights() -> Iterator[None]:
    """Engines of one checkpoint have the same weights: see `loaded_once`."""
    from loaded_once import loaded_once  # loads torch

    with loaded_once():
        yield


@pytest.fixture(scope="module")
def few_layers() -> Iterator[None]:
    """The same, and models have few layers: for tests to which it is all the same what a model answers."""
    from loaded_once import loaded_once  # loads torch

    with loaded_once(layers=4):
        yield


def pytest_collection_finish() -> None:
    """Look for garbage from here on, but not among what was imported: each full collection would take 0.3 s.

    Whichever tests were collected, kernels that they interpret take the same time.
    """
    gc.freeze()
    gc.enable()
    # Python counts what is frozen one by one, in 0.03 s, which each call of an LLM would take: it asks whether there is any.
    frozen = gc.get_freeze_count()
    gc.get_freeze_count = lambda: frozen
    # The interpreter's end has to free everything: Triton's bindings report what it does not. Pytest collects twice before.
    atexit.register(gc.unfreeze)
    if "torch" in sys.modules:
        import torchscript  # loads torch

        torchscript.hasten()
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") == "1":
        from interpreter import hasten  # loads torch

        hasten()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all of tests/gpu with ``gpu``, and skip what is marked so where no GPU is found. Put long tests first."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
    for item in items:
        if "gpu" in item.path.parent.parts:
            item.add_marker(pytest.mark.gpu)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a GPU, and torch finds none here"))
