"""A kernel as Triton's compiler has it after one of its stages. The later stages take most of the time, and are left out."""

from __future__ import annotations

from typing import Any

from triton.backends.nvidia.compiler import CUDABackend

from draftline.kernels.triton.compile.aot import Launch, compiled


class _Reached(Exception):
    """Ends a compilation. Its argument is the kernel's text."""


def text_of(launch: Launch, last: str) -> str:
    """The kernel of a launch for compute capability 9.0, after the stage ``last``: "ttir", "ttgir" or "ptx"."""
    add_stages = CUDABackend.add_stages

    def add_stages_up_to_last(backend: CUDABackend, stages: dict[str, Any], *others: Any) -> None:
        def stop(module: object, metadata: object) -> None:
            raise _Reached(str(module))

        add_stages(backend, stages, *others)
        names = list(stages)
        stages[names[names.index(last) + 1]] = stop

    CUDABackend.add_stages = add_stages_up_to_last
    try:
        return str(compiled(launch, 90).asm[last])  # it was in Triton's cache
    except _Reached as reached:
        return str(reached)
    finally:
        CUDABackend.add_stages = add_stages
