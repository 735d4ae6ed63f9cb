"""Compile every kernel ahead of time, on a machine that needs no GPU.

The operations run on meta tensors, with launches captured instead of executed. So exactly the engine's launches are
compiled: the same signatures, constants and options. Prints one line a kernel, variant and target. Exits with status 1 if
one fails to compile or needs more shared or tensor memory than its target has.

By default it compiles representative launches for sm_90: see `representatives`. ``--target`` names other compute capabilities
(`OPS`), and ``--all`` compiles every launch, which takes about five times as long. Each line has the shared memory and the
registers that spill to local memory.

Usage: ``python -m draftline.kernels.triton.compile.aot [--target 80 …] [--all] [--jobs N] [--kernel SUBSTRING]``
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import torch
import triton
from torch import Tensor
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from draftline.kernels.ops import Ops
from draftline.kernels.triton.compile.aot_cases import CASES, OPS, Case
from draftline.kernels.triton.device import SHARED_BYTES

_DEFAULT_TARGET = 90

_TENSOR_COLUMNS = 512
"""Columns of a multiprocessor's tensor memory, which holds the sums of products on 10.0; other targets use none."""

_TYPES = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bool: "i1",
}


@dataclass(frozen=True, slots=True)
class Launch:
    """One captured launch: everything that selects the binary that Triton compiles for it.

    Attributes:
        kernel: the kernel's name.
        signature: argument name to type, in order.
        constants: the values of the compile-time arguments.
        aligned: indices of the arguments that the kernel may take for multiples of 16.
        options: ``num_warps``, ``num_stages``.
    """

    kernel: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    aligned: tuple[int, ...]
    options: tuple[tuple[str, Any], ...]

    @property
    def capability(self) -> int:
        """The lowest compute capability with its types: e4m3 came with 8.9."""
        return 89 if any("fp8e4nv" in kind for _, kind in self.signature) else 80

    @property
    def variant(self) -> str:
        """The constants and options in one line."""
        return " ".join(f"{name}={value}" for name, value in (*self.constants, *self.options))


@dataclass(frozen=True, slots=True)
class Result:
    """The result of compiling one launch for one target.

    Attributes:
        launch: the launch.
        capability: the target's compute capability, as 80 or 90.
        error: why it failed, or None.
        shared: shared memory of one program, in bytes.
        spilled: local memory of one thread, in bytes: registers that it had no room for, and arrays on its stack.
        seconds: duration.
    """

    launch: Launch
    capability: int
    error: str | None
    shared: int
    spilled: int
    seconds: float


_KERNELS: dict[str, Any] = {}


def _specialise(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Launch:
    names = [param.name for param in kernel.params]
    bound = dict(zip(names, args, strict=False))
    options = {name: value for name, value in kwargs.items() if name not in names}
    bound.update((name, value) for name, value in kwargs.items() if name in names)
    signature, constants, aligned = [], [], []
    for index, param in enumerate(kernel.params):
        value = bound[param.name]
        if param.is_constexpr:
            signature.append((param.name, "constexpr"))
            constants.append((param.name, value))
        elif value is None:
            signature.append((param.name, "constexpr"))
            constants.append((param.name, None))
        elif isinstance(value, TensorDescriptor):
            block = ", ".join(map(str, value.block_shape))
            signature.append((param.name, f"tensordesc<{_TYPES[value.base.dtype]}[{block}]>"))
        elif isinstance(value, Tensor):
            signature.append((param.name, f"*{_TYPES[value.dtype]}"))
            # The allocator aligns to 512 bytes, so that a view's offset decides.
            if not param.do_not_specialize_on_alignment and value.storage_offset() * value.element_size() % 16 == 0:
                aligned.append(index)
        elif isinstance(value, float):
            signature.append((param.name, "fp32"))
        elif value == 1 and not param.do_not_specialize:
            signature.append((param.name, "constexpr"))
            constants.append((param.name, value))
        else:
            signature.append((param.name, "i32" if -(2**31) <= value < 2**31 else "i64"))
            if value % 16 == 0 and not param.do_not_specialize:
                aligned.append(index)
    return Launch(
        kernel.fn.__name__, tuple(signature), tuple(constants), tuple(aligned), tuple(sorted(options.items()))
    )


@contextmanager
def captured_launches(into: dict[Launch, None]) -> Iterator[None]:
    """Collect launches instead of running them."""
    run = JITFunction.run

    def capture(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        launch = _specialise(self, args, kwargs)
        _KERNELS[launch.kernel] = self
        into[launch] = None

    JITFunction.run = capture
    try:
        yield
    finally:
        JITFunction.run = run


def collect(cases: dict[str, Case], ops: Ops) -> list[Launch]:
    """The distinct launches of the cases with these operations, in order."""
    launches: dict[Launch, None] = {}
    with captured_launches(launches):
        for case in cases.values():
            case(ops)
    return list(launches)


def representatives(launches: Iterable[Launch]) -> list[Launch]:
    """A few launches of each kernel, which together have all its branches and types.

    A kernel branches on constants: on flags, on arguments that may be missing, and on whether a number is 0, 1 or more.
    The launches chosen cover every such value of every argument of a kernel, and every type. Other numbers are sizes.
    """
    by_kernel: dict[str, list[Launch]] = defaultdict(list)
    for launch in launches:
        by_kernel[launch.kernel].append(launch)
    chosen = []
    for variants in by_kernel.values():
        traits = {launch: _traits(launch) for launch in variants}
        left = set().union(*traits.values())
        while left:
            best = max(variants, key=lambda launch: len(traits[launch] & left))
            chosen.append(best)
            left -= traits[best]
    return chosen


def _traits(launch: Launch) -> set[tuple[str, str]]:
    """(argument, kind of value) of every constant, and (argument, type) of every other argument."""

    def kind(value: Any) -> str:
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value) if value in (0, 1) else "size"
        return str(value)

    types = {(name, kind.partition("[")[0]) for name, kind in launch.signature}  # a descriptor's shape is a size
    return types | {(name, kind(value)) for name, value in launch.constants}


def compiled(launch: Launch, capability: int) -> Any:
    """Triton's compiled kernel of a launch for a compute capability, as 80 or 90."""
    source = ASTSource(
        _KERNELS[launch.kernel],
        dict(launch.signature),
        dict(launch.constants),
        {(index,): [["tt.divisibility", 16]] for index in launch.aligned},
    )
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=dict(launch.options))


def local_bytes(cubin: bytes) -> int:
    """Local memory of one thread of a compiled kernel."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return sum(int(found) for found in re.findall(r"(?:STACK|LOCAL):(\d+)", usage))


def lack(metadata: Any, capability: int) -> str | None:
    """The memory that a target lacks for a compiled kernel, by Triton's metadata; None if it has enough."""
    if metadata.shared > SHARED_BYTES[capability]:
        return f"needs {metadata.shared} bytes of shared memory of {SHARED_BYTES[capability]}"
    columns = getattr(metadata, "tmem_size", None) or 0
    return f"needs {columns} columns of tensor memory of {_TENSOR_COLUMNS}" if columns > _TENSOR_COLUMNS else None


def _compile(job: tuple[Launch, int]) -> Result:
    launch, capability = job
    begin = time.perf_counter()
    error, shared, spilled = None, 0, 0
    try:
        kernel = compiled(launch, capability)
        shared, spilled = kernel.metadata.shared, local_bytes(kernel.asm["cubin"])
        error = lack(kernel.metadata, capability)
    except Exception as failure:  # noqa: BLE001 - whatever the compiler raises is this variant's result
        error = f"{type(failure).__name__}: {failure}"
    return Result(launch, capability, error, shared, spilled, time.perf_counter() - begin)


def compile_all(work: list[tuple[Launch, int]], jobs: int) -> Iterator[Result]:
    """Compile launches, each for a compute capability, in ``jobs`` processes, yielding results in order."""
    # Forked, so that the workers have the captured kernels.
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as pool:
        yield from pool.map(_compile, work)


def main(argv: list[str] | None = None, write: Callable[[str], object] = print) -> int:
    """Compile what the arguments say; returns the exit status."""
    parser = argparse.ArgumentParser(description="Compile every Triton kernel ahead of time.")
    parser.add_argument("--all", action="store_true", help="every launch, not representative ones")
    parser.add_argument(
        "--target", type=int, nargs="+", choices=sorted(OPS), default=[_DEFAULT_TARGET], help="compute capabilities"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--kernel", default="", help="only kernels whose name contains this")
    options = parser.parse_args(argv)
    work = [
        (launch, capability)
        for capability in options.target
        for launch in (representatives if not options.all else list)(collect(CASES, OPS[capability]))
        if options.kernel in launch.kernel and capability >= launch.capability
    ]
    failed = count = 0
    for result in compile_all(work, options.jobs):
        count += 1
        failed += result.error is not None
        verdict = result.error or f"ok {result.shared} B shared {result.spilled} B spilled {result.seconds:.1f} s"
        write(f"sm_{result.capability} {result.launch.kernel} {result.launch.variant}: {verdict}")
    write(f"{count - failed} compiled, {failed} failed")
    return 1 if failed or not count else 0


if __name__ == "__main__":
    sys.exit(main())
