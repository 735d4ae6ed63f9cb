"""The device that an engine runs on: which one an option names, and whether it can run this."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import torch

from draftline.engine.config import EngineConfig
from draftline.kernels.compile_workers import triton_cache
from draftline.kernels.host_gpu import has_gpu
from draftline.models.checkpoints.checkpoint import Checkpoint
from draftline.models.errors import ModelLoadError
from draftline.models.weight_kinds import weight_kinds

logger = logging.getLogger(__name__)

_INSTEAD = "--device cpu (device='cpu' in Python) runs instead"

_LEAST = (8, 0)
"""Compute capability: older GPUs have no bfloat16 and no asynchronous copies, which the kernels are built on."""

_FP8 = (8, 9)

_OTHERS = {"mps": "Apple's GPUs", "xpu": "Intel's GPUs", "hip": "AMD's GPUs", "hpu": "Intel's Gaudi", "xla": "TPUs"}
"""By torch's type of device."""


@dataclass(frozen=True, slots=True)
class _GPU:
    """One CUDA device."""

    index: int
    name: str
    capability: tuple[int, int]
    memory: int

    @staticmethod
    def at(index: int) -> _GPU:
        """The device with an index."""
        properties = torch.cuda.get_device_properties(index)
        return _GPU(index, properties.name, (properties.major, properties.minor), properties.total_memory)

    def __str__(self) -> str:
        return f"cuda:{self.index} ({self.name})"


def select_device(config: EngineConfig) -> torch.device:
    """The device that a configuration asks for. Nothing is loaded on it.

    Where ``device`` is "auto" and the GPUs are of different kinds, it is the one with the most memory. With several
    ranks it is that of rank 0, and the others' are those after it.

    Raises:
        ModelLoadError: there is no such device, or it cannot run this; the message says what can.
    """
    device = _named(config.device)
    if device.type == "cuda":
        ranks = config.tensor_parallel_size
        first = torch.cuda.current_device() if device.index is None else device.index
        if config.device in ("auto", "cuda") and ranks > 1:
            first = 0
        count = torch.cuda.device_count()
        if first + ranks > count:
            raise ModelLoadError(
                f"tensor_parallel_size: {ranks} ranks need as many GPUs from cuda:{first} on, and this host has {count}; "
                f"at most {count - first} fit"
            )
        gpus = [_GPU.at(index) for index in range(first, first + ranks)]
        for gpu in gpus:
            _check(gpu, config)
        _check_peers(gpus)
        return torch.device("cuda", first)
    if "gpu_memory_utilization" in config.model_fields_set:
        raise ModelLoadError("gpu_memory_utilization: has no effect on a CPU; set kv_cache_memory_gib")
    return device


def check_weights(model: str, checkpoint: Checkpoint, device: torch.device, option: str) -> None:
    """Refuse a checkpoint in FP8 where the GPU has none, before its weights are read.

    Args:
        model: the checkpoint as it was asked for.
        checkpoint: the opened checkpoint.
        device: where it is to run.
        option: the option that converts its weights.

    Raises:
        ModelLoadError: it cannot run there.
    """
    if has_fp8(device):
        return
    for raw, _ in weight_kinds(checkpoint):
        if raw.format == "F8_E4M3" and raw.scales is not None and raw.convert_to is None:
            raise ModelLoadError(f"{option}: {model} is in FP8: {_no_fp8(_GPU.at(device.index))}")


def has_fp8(device: torch.device) -> bool:
    """Whether a device can run FP8. Every CPU can."""
    return device.type != "cuda" or _GPU.at(device.index).capability >= _FP8


def _no_fp8(gpu: _GPU) -> str:
    has = ".".join(map(str, gpu.capability))
    return f"FP8 needs a GPU of compute capability 8.9, and {gpu} has {has}; 'int8' runs there"


def device_name(device: torch.device) -> str:
    """A GPU's name as its driver gives it; empty for a CPU."""
    return torch.cuda.get_device_properties(device).name if device.type == "cuda" else ""


def device_uuids(devices: Sequence[torch.device]) -> tuple[str, ...]:
    """The unique ids of GPUs, which other processes know them by; none for CPUs."""
    return tuple(f"GPU-{torch.cuda.get_device_properties(device).uuid}" for device in devices if device.type == "cuda")


def rank_device(first: torch.device, rank: int) -> torch.device:
    """The device of a rank, ``first`` being that of rank 0.

    More ranks than GPUs would share them, rank by rank. `select_device` refuses that: only tests do it.
    """
    if first.type == "cpu":
        return first
    return torch.device(first.type, ((first.index or 0) + rank) % torch.cuda.device_count())


def rank_devices(first: torch.device, ranks: int) -> tuple[torch.device, ...]:
    """The devices of all ranks, ``first`` being that of rank 0."""
    return tuple(rank_device(first, rank) for rank in range(ranks))


def _named(name: str) -> torch.device:
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", _best().index)
        if has_gpu():
            logger.warning("device: auto takes the CPU, since torch cannot use this machine's GPU: %s", _cuda_trouble())
        return torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ModelLoadError(f"device: {name!r} is no device; there are auto, cpu, cuda, cuda:1 and so on") from error
    if device.type not in ("cpu", "cuda"):
        whose = _OTHERS.get(device.type, f"devices of type {device.type}")
        raise ModelLoadError(f"device: {name!r}: {whose} are not supported; {_INSTEAD}")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ModelLoadError(f"device: {name!r} cannot be used: {str(error).splitlines()[0]}; {_INSTEAD}") from error
    return device


def _cuda_trouble() -> str:
    """Why torch uses no GPU: its build, the driver, or which GPUs the process may see."""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return str(error).splitlines()[0]
    return "it sees none"


def _best() -> _GPU:
    """The GPU that "auto" takes: the current one, unless there are several kinds."""
    current = torch.cuda.current_device()
    gpus = [_GPU.at(index) for index in range(torch.cuda.device_count())]
    if len({(gpu.name, gpu.memory) for gpu in gpus}) == 1:
        return gpus[current]
    best = max(gpus, key=lambda gpu: (gpu.capability >= _LEAST, gpu.memory, gpu.capability, -gpu.index))
    others = ", ".join(str(gpu) for gpu in gpus if gpu is not best)
    logger.info("device: auto takes %s, which has the most memory of those that can run it; not %s", best, others)
    return best


def _check(gpu: _GPU, config: EngineConfig) -> None:
    """Refuse what this GPU cannot run."""
    if torch.version.hip is not None:
        raise ModelLoadError(f"device: {gpu}: AMD's GPUs are not supported; {_INSTEAD}")
    has = ".".join(map(str, gpu.capability))
    if gpu.capability < _LEAST:
        raise ModelLoadError(
            f"device: {gpu} has compute capability {has}; the kernels need 8.0 (Ampere, 2020) or newer; {_INSTEAD}"
        )
    if gpu.capability < _FP8:
        for option, value in (
            ("kv_cache_dtype", config.kv_cache_dtype),
            ("quantization", config.quantization),
            ("draft_quantization", config.draft_quantization),
        ):
            if value == "fp8":
                raise ModelLoadError(f"{option}: {_no_fp8(gpu)}")
    _check_triton()


def _check_peers(gpus: Sequence[_GPU]) -> None:
    """Refuse ranks that cannot write to one another's memory, by which they add their sums."""
    for gpu, peer in permutations(gpus, 2):
        if not torch.cuda.can_device_access_peer(gpu.index, peer.index):
            raise ModelLoadError(
                f"tensor_parallel_size: {gpu} cannot reach the memory of {peer}, which ranks need; `nvidia-smi topo -p2p w` "
                "shows which GPUs can, and CUDA_VISIBLE_DEVICES chooses them. draftline serve --data-parallel-size runs a "
                "whole model on each GPU"
            )


def _check_triton() -> None:
    """Let Triton build its driver, which takes a C compiler once for each machine, before it is needed.

    Raises:
        ModelLoadError: it cannot.
    """
    from triton.runtime import driver  # imported here, since a CPU runs without Triton

    with cache_explained():
        try:
            driver.active.utils  # noqa: B018 - it is built when it is first asked for
        except AssertionError as error:
            raise ModelLoadError(
                "Triton finds no libcuda.so.1, which NVIDIA's driver installs. Run ldconfig as root where the driver is "
                "installed; or let TRITON_LIBCUDA_PATH name the folder of that file."
            ) from error
        except ImportError as error:
            raise ModelLoadError(
                f"Triton cannot load the driver that it has built in {triton_cache()} ({_last_line(error)}). The folder's "
                "file system must allow programs (no noexec); TRITON_CACHE_DIR names another folder."
            ) from error
        except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
            if _is_about_cache(error):
                raise
            raise ModelLoadError(
                f"Triton cannot build its driver, which takes a C compiler and Python's headers ({_last_line(error)}). "
                "Debian and Ubuntu have them in gcc and python3-dev, Fedora in gcc and python3-devel; CC names another compiler."
            ) from error


@contextmanager
def cache_explained() -> Iterator[None]:
    """Turn an error about Triton's cache on disk into one that says what helps.

    Raises:
        ModelLoadError: Triton cannot write to its cache.
    """
    try:
        yield
    except OSError as error:
        if not _is_about_cache(error):
            raise
        raise ModelLoadError(
            f"Triton cannot write compiled kernels to its cache, {triton_cache()}: {error.strerror} ({error.filename}). "
            "TRITON_CACHE_DIR names another folder."
        ) from error


def _is_about_cache(error: Exception) -> bool:
    """Whether an error names a file of Triton's cache, or a folder that leads to it."""
    if not isinstance(error, OSError) or not isinstance(error.filename, str):
        return False
    folder, named = triton_cache(), Path(error.filename)
    return named.is_relative_to(folder) or (folder.is_relative_to(named) and not folder.exists())


def _last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
