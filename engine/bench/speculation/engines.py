"""The engines that are compared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from draftline.engine.bench.readiness import wait_until_ready
from draftline.engine.config import EngineConfig
from draftline.engine.process.remote_engine import RemoteEngine
from draftline.engine.process.replicas import start_replicas
from draftline.engine.process.startup import runs_on_gpu
from draftline.engine.protocol import EngineClient
from draftline.engine.runner.device import select_device
from draftline.engine.threaded_engine import start_engine

NO_SHARE = "several engines share the device: use kv_cache_memory_gib"
"""The reason why ``gpu_memory_utilization`` is refused."""

_CACHE_GIB = 8.0


def shared_cache(device: str) -> dict[str, float]:
    """The option of each engine's cache where none is given: on a GPU, the first must leave memory for the others."""
    on_gpu = select_device(EngineConfig(device=device)).type == "cuda"
    return {"kv_cache_memory_gib": _CACHE_GIB} if on_gpu else {}


def in_own_process(config: EngineConfig, wanted: bool | None = None) -> bool:
    """Whether an engine gets a process of its own: as ``wanted``, else as a server's, which has one on a GPU.

    There it does not wait for who reads its answers. An engine of several devices always has one: a process divides a
    model once.
    """
    if config.tensor_parallel_size > 1:
        return True
    return runs_on_gpu(config.device) if wanted is None else wanted


@contextmanager
def running(config: EngineConfig, own_process: bool | None = None) -> Iterator[EngineClient]:
    """An engine that compiles nothing beside its steps, closed at the end; see `in_own_process`.

    Raises:
        ModelLoadError: the model cannot be loaded, or cannot be served with these options.
    """
    own = in_own_process(config, own_process)
    with closing(RemoteEngine(config, start_replicas(config)) if own else start_engine(config)) as engine:
        wait_until_ready(engine.stats)
        yield engine
