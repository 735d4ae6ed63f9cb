"""The ahead-of-time compiler itself; `make kernels` compiles representative launches of every kernel."""

from __future__ import annotations

from typing import Any

import pytest
from uninterpreted import Uninterpreted, run

pytestmark = pytest.mark.long

_SCRIPT = """
from types import SimpleNamespace

from draftline.kernels.triton.compile import aot
from draftline.kernels.triton.compile.aot import collect, lack, main, representatives
from draftline.kernels.triton.compile.aot_cases import CASES, OPS

SIZES = ((232_448, 512), (232_449, 0), (0, 513), (0, None))

# The command, on the cases of one family: collecting all launches again for each call would take most of the time.
aot.CASES = {name: case for name, case in CASES.items() if name.startswith("gemma-3")}
lines = []
status = main(["--all", "--target", "80", "90", "--jobs", "1", "--kernel", "soft_cap"], lines.append)
launches = collect(CASES, OPS[90])
found = {
    "status": status,
    "lines": lines,
    "of nothing": main(["--jobs", "1", "--kernel", "no such kernel"]),
    "launched": [[launch.kernel, launch.constants] for launch in launches],
    "chosen": [[launch.kernel, launch.constants] for launch in representatives(launches)],
    "lacks": [lack(SimpleNamespace(shared=shared, tmem_size=columns), 100) for shared, columns in SIZES],
    "other kernels": sorted({launch.kernel for launch in collect(CASES, OPS[80])} - {launch.kernel for launch in launches}),
}
aot.CASES = CASES
"""


@pytest.fixture(scope="module")
def found(uninterpreted: Uninterpreted) -> dict[str, Any]:
    found: dict[str, Any] = uninterpreted.find(_SCRIPT)
    return found


def test_kernels_compile_for_both_targets(found: dict[str, Any]) -> None:
    assert found["status"] == 0
    *lines, last = found["lines"]
    assert last.endswith(" 0 failed")
    assert {line.split()[0] for line in lines} == {"sm_80", "sm_90"}
    assert all("_soft_cap_kernel " in line and ": ok " in line and " B spilled" in line for line in lines)


def test_what_a_target_lacks_is_a_failure(found: dict[str, Any]) -> None:
    assert found["lacks"] == [
        None,
        "needs 232449 bytes of shared memory of 232448",
        "needs 513 columns of tensor memory of 512",
        None,
    ]


def test_nothing_to_compile_is_a_failure(found: dict[str, Any]) -> None:
    assert found["of nothing"] == 1


def test_representatives_have_every_kernel_and_every_flag(found: dict[str, Any]) -> None:
    assert found["other kernels"] == []

    def flags(launches: list[Any]) -> set[tuple[str, str, object]]:
        return {
            (kernel, name, value)
            for kernel, constants in launches
            for name, value in constants
            if value is None or isinstance(value, bool | str)
        }

    launched, chosen = found["launched"], found["chosen"]
    assert {kernel for kernel, _ in chosen} == {kernel for kernel, _ in launched}
    assert flags(chosen) == flags(launched)
    assert len(chosen) < len(launched) / 4


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("target", ["80", "86", "89", "90", "100", "120"])
def test_every_launch_compiles_for_every_target(target: str) -> None:
    done = run("-m", "draftline.kernels.triton.compile.aot", "--all", "--target", target)
    failures = [line for line in done.stdout.splitlines() if ": ok " not in line]
    assert done.returncode == 0, failures
