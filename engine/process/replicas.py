"""``start_replicas``: the processes of an engine, begun before the server that will use them is even imported."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack

from draftline.engine.config import EngineConfig
from draftline.engine.process.engine_process import EngineProcess
from draftline.engine.process.log_format import LogFormat
from draftline.kernels.host_gpu import has_gpu
from draftline.models.errors import ModelLoadError

_WORKER = "draftline.engine.process.worker"
"""The module of the engine process."""


def start_replicas(
    config: EngineConfig,
    replicas: int = 1,
    *,
    log_level: str = "warning",
    log_format: LogFormat = "text",
    worker: Sequence[str] = (_WORKER,),
) -> list[EngineProcess]:
    """Start processes that import torch and wait for `EngineProcess.load_model`, each for a replica of the model.

    Args:
        config: the options of each engine.
        replicas: how many there are. On GPUs each has its own, from ``device`` on.
        log_level: what the processes log.
        log_format: how they do.
        worker: the module that each runs, and arguments for it before the connection's.

    Raises:
        ModelLoadError: ``device`` names something that cannot be counted.
    """
    environment = {} if replicas == 1 else _threads_of_one(replicas)
    with ExitStack() as undo:
        started = []
        for of_replica in replica_configs(config, replicas, gpu=has_gpu()):
            process = EngineProcess(
                of_replica, log_level=log_level, log_format=log_format, worker=worker, environment=environment
            )
            undo.callback(process.abandon)
            started.append(process)
        undo.pop_all()
    return started


def replica_configs(config: EngineConfig, replicas: int, *, gpu: bool) -> list[EngineConfig]:
    """The options of each replica: those given, on GPUs with devices of its own, counted from ``device`` on.

    Args:
        config: the options.
        replicas: how many there are.
        gpu: whether the machine has a GPU.

    Raises:
        ModelLoadError: ``device`` names something that cannot be counted.
    """
    if replicas == 1 or config.device == "cpu" or (config.device == "auto" and not gpu):
        return [config] * replicas
    size = config.tensor_parallel_size
    kind, _, first = config.device.replace("auto", "cuda").partition(":")
    if kind != "cuda" or not (first or "0").isdigit():
        raise ModelLoadError(f"data_parallel_size: there are no {replicas} devices from {config.device!r} on")
    begin = int(first or 0)
    return [config.model_copy(update={"device": f"cuda:{begin + index * size}"}) for index in range(replicas)]


def _threads_of_one(replicas: int) -> dict[str, str]:
    """The environment of one of several processes on a CPU, which share its cores."""
    given = os.environ.get("OMP_NUM_THREADS")
    return {"OMP_NUM_THREADS": given or str(max(1, (os.cpu_count() or 1) // replicas))}
