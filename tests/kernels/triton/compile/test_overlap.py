"""Kernels that write a batch let no later one start early: attention reads the batch before it waits (`overlap.py`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.long

# A process of its own, without the interpreter of kernels that tests run in.
_SCRIPT = """
import json
from draftline.kernels.triton.compile.aot import collect, compiled
from draftline.kernels.triton.compile.aot_cases import CASES, OPS

found = {}
for launch in collect(CASES, OPS[90]):
    overlaps = dict(launch.constants).get("OVERLAP")
    if launch.kernel in ("_gather_drafts_kernel", "_move_rows_kernel") and overlaps and launch.kernel not in found:
        found[launch.kernel] = compiled(launch, 90).asm["ptx"]
    if launch.kernel == "_gather_kernel":
        assert "OVERLAP" not in dict(launch.constants)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def code() -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", _SCRIPT], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_batch_of_drafts_is_written_before_later_kernels_start(code: dict[str, str]) -> None:
    gather = code["_gather_drafts_kernel"]
    assert "griddepcontrol.wait" in gather
    assert "griddepcontrol.launch_dependents" not in gather


def test_others_let_the_next_kernel_start(code: dict[str, str]) -> None:
    moves = code["_move_rows_kernel"]
    assert moves.index("griddepcontrol.launch_dependents") < moves.index("griddepcontrol.wait")
