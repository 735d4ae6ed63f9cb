"""The engines that are compared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from draftline.engine.config import EngineConfig
from draftline.engine.process.remote_engine import RemoteEngine
from draftline.engine.protocol import EngineClient
from draftline.engine.threaded_engine import start_engine


@contextmanager
def running(config: EngineConfig) -> Iterator[EngineClient]:
    """An engine, closed at the end. One of several devices has a process of its own: a process divides a model once.

    Raises:
        ModelLoadError: the model cannot be loaded, or cannot be served with these options.
    """
    start = start_engine if config.tensor_parallel_size == 1 else RemoteEngine
    with closing(start(config)) as engine:
        yield engine
