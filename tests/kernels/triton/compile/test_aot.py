"""The ahead-of-time compiler itself; `python -m draftline.kernels.triton.compile.aot` compiles everything."""

from __future__ import annotations

import os
import subprocess
import sys


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Python, without the interpreter of kernels that tests run in."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)


def aot(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run("-m", "draftline.kernels.triton.compile.aot", "--jobs", "1", *arguments)


def test_kernels_compile_for_both_targets() -> None:
    done = aot("--kernel", "silu_mul")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1].endswith(" 0 failed")
    assert {line.split()[0] for line in lines[:-1]} == {"sm_80", "sm_90"}
    assert all("_silu_mul_kernel N=" in line and ": ok " in line for line in lines[:-1])


def test_nothing_to_compile_is_a_failure() -> None:
    assert aot("--kernel", "no such kernel").returncode == 1


_LAYOUTS = """
import re
from draftline.kernels.triton.compile.aot import collect, compiled
from draftline.kernels.triton.compile.aot_cases import CASES, OPS
for launch in collect({name: case for name, case in CASES.items() if name.startswith("llama-8b-fp8") and name.endswith("1")}, OPS[90]):
    if launch.kernel == "_scaled_gemv_kernel":
        code = compiled(launch, 90).asm["ttgir"]
        of_products = set(re.findall(r'elementwise_inline_asm "[^"]*mma[.]sync[^"]*".*-> tensor<[0-9x]+f32, (#[a-z0-9]+)>', code))
        print(*(re.search(f"^{name} = (.*)", code, re.MULTILINE)[1] for name in of_products))
"""


def test_matrix_vector_products_have_the_layout_that_they_count_on() -> None:
    """Without it, what threads hand to the matrix units would be of different rows: see `scaled_gemv._multiply`."""
    done = run("-c", _LAYOUTS)
    assert done.returncode == 0, done.stderr
    layouts = done.stdout.splitlines()
    assert len(layouts) > 2
    for layout in layouts:
        assert "sizePerThread = [1, 8], threadsPerWarp = [1, 32], warpsPerCTA = [1, " in layout
        assert layout.count("blocked") == 1, "one layout for all of a kernel's products"
