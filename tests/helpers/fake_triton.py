"""Stand-ins for Triton's functions and compiled kernels, and for the processes that compile them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from triton import knobs

from draftline.kernels.compile_workers import CompileJob


@dataclass
class Kernel:
    """Stands for a CompiledKernel."""

    launches: int = 0

    @property
    def run(self) -> object:
        return None


@dataclass(eq=False)
class Function:
    """Stands in for a JITFunction and its cache on disk."""

    disk: set[str] = field(default_factory=set)
    compiled: list[str] = field(default_factory=list)
    device_caches: Any = field(default_factory=lambda: defaultdict(lambda: ({},)))

    def __call__(self, variant: str) -> None:
        """As JITFunction.run does it."""
        kernel = self.device_caches[0][0].get(variant) or self._compile(variant, warmup=False)
        if isinstance(kernel, Kernel):
            kernel.launches += 1
        elif kernel is not None:
            kernel.launch_metadata((1,), 0)
            kernel.run(1, 1, 1, 0, kernel.function, kernel.packed_metadata)

    def preload(self, variant: str) -> Kernel | None:
        return self._compile(variant, warmup=True)

    def _compile(self, variant: str, *, warmup: bool) -> Kernel | None:
        hook = knobs.runtime.jit_cache_hook
        told: dict[str, Any] = {"specialization_data": variant, "signature": {"x": variant}, "device": 0}
        named = Named("kernels", "function", self)
        if hook and hook(key=variant, fn=named, compile=told, is_manual_warmup=warmup, repr="", already_compiled=False):
            return None
        if variant == "broken":
            raise RuntimeError("does not compile")
        if knobs.compilation.listener:
            knobs.compilation.listener(
                src=None, metadata={}, metadata_group={}, times=None, cache_hit=variant in self.disk
            )
        if variant not in self.disk:
            self.compiled.append(variant)
        kernel = self.device_caches[0][0][variant] = Kernel()
        return kernel


@dataclass(frozen=True)
class Named:
    """Stands for a JitFunctionInfo."""

    module: str
    name: str
    jit_function: Function


class Workers:
    """Stands in for KernelCompileWorkers."""

    def __init__(self, function: Function) -> None:
        self.started = 0
        self.stopped = False
        self.submitted: list[str] = []
        self._function = function

    def start_if_useful(self) -> Workers:
        self.started += 1
        return self

    def compile(self, job: CompileJob) -> None:
        assert (job.module, job.name, job.capability) == ("kernels", "function", 90)
        self.submitted.append(job.specialization)

    def compiled(self) -> Iterator[int]:
        for number, variant in enumerate(self.submitted):
            if variant != "broken":
                self._function.disk.add(variant)
                yield number

    def stop(self) -> None:
        self.stopped = True
