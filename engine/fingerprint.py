"""``SystemFingerprint``: the facts that decide the bits of an output besides its request, and a short name for them.

``engine_digest``: a name for the facts that decide an engine's kernels and their speed.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch

import draftline
from draftline.engine.config import EngineConfig
from draftline.kernels.arithmetic import ARITHMETIC_REVISION
from draftline.structured.cache_files import code_digest

_NEUTRAL_OPTIONS = {
    "model", "tokenizer", "chat_template", "draft_model", "constraint_cache", "default_seed",
    "prefix_caching", "max_waiting", "max_waiting_tokens", "ageing_s", "inter_token_target",
}  # fmt: skip
"""Options that no step's kernels or duration depend on. The models are known by their shapes, not by their names."""

_CODE = tuple(Path(draftline.__file__).parent / package for package in ("engine", "kernels", "models", "quant", "spec"))


@dataclass(frozen=True, slots=True)
class SystemFingerprint:
    """The facts that decide which bits an engine computes for a request.

    Two engines of one model with equal facts give equal outputs. With different facts they may or may not.

    Attributes:
        device: the kind of device: the GPU's name and compute capability, or the CPU's name and instruction set. Of all
            ranks in order, where they differ.
        dtype: of activations.
        weights: the formats that the weights run in.
        conversion: the format that dense weights were converted to while they were loaded; ``auto`` for none.
        cache_dtype: of keys and values.
        draftline: this package's version.
        libraries: the versions of the libraries that compute or compile kernels.
        ranks: the devices that share the model: each adds its part of a sum, so their number decides the rounding.
        arithmetic: `ARITHMETIC_REVISION`.
    """

    device: str
    dtype: str
    weights: str
    conversion: str
    cache_dtype: str
    draftline: str
    libraries: str
    ranks: int
    arithmetic: int

    @staticmethod
    def of(
        devices: Sequence[torch.device],
        *,
        dtype: torch.dtype,
        weights: str,
        conversion: str,
        cache_dtype: torch.dtype,
    ) -> SystemFingerprint:
        """The facts of an engine with a rank on each of ``devices``; see the attributes."""
        kinds = [_device_kind(device) for device in devices]
        return SystemFingerprint(
            device=kinds[0] if len(set(kinds)) == 1 else " + ".join(kinds),
            dtype=_name(dtype),
            weights=weights,
            conversion=conversion,
            cache_dtype=_name(cache_dtype),
            draftline=draftline.__version__,
            libraries=_libraries(devices[0]),
            ranks=len(devices),
            arithmetic=ARITHMETIC_REVISION,
        )

    def __str__(self) -> str:
        """``fp_`` and 12 hexadecimal digits: the start of the facts' SHA-256. The same in every process."""
        return f"fp_{hashlib.sha256(self.facts.encode()).hexdigest()[:12]}"

    @property
    def facts(self) -> str:
        """The facts as ``name: value, …``."""
        return ", ".join(f"{field.name}: {getattr(self, field.name)}" for field in fields(self))


def engine_digest(config: EngineConfig, facts: tuple[str, ...]) -> str:
    """A digest of all that decides which kernels an engine's steps launch and how long they take, as a file's name.

    Args:
        config: the engine's options.
        facts: the rest besides the code: the device, the libraries, the models' shapes.
    """
    options = config.model_dump_json(exclude=_NEUTRAL_OPTIONS)
    content = code_digest(_CODE) + repr((options, torch.get_num_threads(), facts)).encode()
    return hashlib.sha256(content).hexdigest()[:40]


def cpu_name() -> str:
    """The CPU's model name, or else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _device_kind(device: torch.device) -> str:
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return f"{torch.cuda.get_device_name(device)} (compute capability {major}.{minor})"
    # torch chooses its kernels by the instruction set; MKL and oneDNN by the vendor as well.
    return f"{cpu_name()} ({torch.backends.cpu.get_cpu_capability()})"


def _libraries(device: torch.device) -> str:
    versions = [f"torch {torch.__version__}"]
    if device.type == "cuda":
        versions.append(f"triton {importlib.metadata.version('triton')}")
    return " and ".join(versions)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
