"""When kernels wait for earlier ones and let later ones start: the rules of `overlap.py` in the compiler's code."""

from __future__ import annotations

import pytest
from uninterpreted import Uninterpreted

pytestmark = pytest.mark.long

_SCRIPT = """
from compiled_text import text_of
from draftline.kernels.triton.compile.aot import collect
from draftline.kernels.triton.compile.aot_cases import CASES, OPS

KERNELS = "_gather_kernel", "_gather_drafts_kernel", "_move_rows_kernel", "_divide_kernel"
chosen = {}
for launch in collect(CASES, OPS[90]):
    if launch.kernel in KERNELS and dict(launch.constants).get("OVERLAP", True):
        chosen.setdefault(launch.kernel, launch)
for launch in collect({"pair": CASES["llama-8b-pair"]}, OPS[90]):
    if dict(launch.constants).get("PLACE"):
        chosen[("first", "second")[dict(launch.constants)["PLACE"] - 1]] = launch
found = {kernel: text_of(launch, "ptx") for kernel, launch in chosen.items()}
"""

_OF_ONE_ROW = """
from compiled_text import text_of
from draftline.kernels.triton.compile.aot import collect
from draftline.kernels.triton.compile.aot_cases import CASES, OPS

found = text_of(next(launch for launch in collect({case: CASES[case]}, OPS[90]) if launch.kernel == kernel), "ptx")
"""


AT_ONCE = (
    ("smollm2-135m-one", "_gemm_m16_kernel"),
    ("smollm2-135m-one", "decode_attention_kernel"),
    ("smollm2-135m-one", "_join_kernel"),
    ("qwen3-0.6b-one", "_gemm_m16_parts_kernel"),
    pytest.param("llama-8b-one", "_gemm_m16_kernel", marks=pytest.mark.slow),
)
"""The case of `aot_cases.py`, and the kernel. Of SmolLM2 it is the gates and ups, of Qwen3 attention's output projection."""

BEFORE_ATTENTION = (("qwen3-0.6b-one", "_gemm_m16_kernel"), ("smollm2-135m-one", "_gemm_m16_parts_kernel"))
"""The first product of a layer."""


@pytest.fixture(scope="module")
def code(uninterpreted: Uninterpreted) -> dict[str, str]:
    found: dict[str, str] = uninterpreted.find(_SCRIPT)
    return found


def code_of_one_row(case: str, kernel: str, uninterpreted: Uninterpreted) -> str:
    code: str = uninterpreted.find(_OF_ONE_ROW, case=case, kernel=kernel)
    return code


def test_a_step_s_batch_is_written_without_overlap(code: dict[str, str]) -> None:
    """Attention reads it before it waits."""
    assert "griddepcontrol" not in code["_gather_kernel"]


@pytest.mark.parametrize("kernel", ["_gather_drafts_kernel", "_divide_kernel"])
def test_a_batch_of_drafts_and_parts_are_written_before_later_kernels_start(kernel: str, code: dict[str, str]) -> None:
    assert "griddepcontrol.wait" in code[kernel]
    assert "griddepcontrol.launch_dependents" not in code[kernel]


def test_others_let_the_next_kernel_start(code: dict[str, str]) -> None:
    moves = code["_move_rows_kernel"]
    assert moves.index("griddepcontrol.launch_dependents") < moves.index("griddepcontrol.wait")


def test_the_first_of_a_pair_waits_before_the_second_starts(code: dict[str, str]) -> None:
    first = code["first"]
    assert first.index("griddepcontrol.wait") < first.index("griddepcontrol.launch_dependents")
    assert first.index("griddepcontrol.launch_dependents") < first.index("st.global")
    assert first.count("griddepcontrol.wait") == 1


def test_the_second_of_a_pair_waits_last(code: dict[str, str]) -> None:
    second = code["second"]
    # Before the fence it reads the batch, and asks for the cache's history; behind it, it reads activations and tiles of the cache.
    begins, fence = second.index("griddepcontrol.launch_dependents"), second.index("fence.acq_rel.gpu")
    assert begins < fence < second.index("cp.async")
    assert "st.global" not in second[:fence]
    # A program whose row is no decode waits, too.
    waits = second.count("griddepcontrol.wait")
    assert waits == 2
    assert second.rindex("st.global") < second.rindex("griddepcontrol.wait")


PLACES = ("griddepcontrol.launch_dependents", "ld.global", "griddepcontrol.wait", "st.global")
"""Of these, the first of each kind shows when a kernel lets the next one start."""


def in_order(code: str) -> list[str]:
    return sorted(PLACES, key=code.index)


@pytest.mark.parametrize(("case", "kernel"), AT_ONCE)
def test_small_kernels_of_a_single_row_and_long_products_let_the_next_start_at_once(
    case: str, kernel: str, uninterpreted: Uninterpreted
) -> None:
    starts, reads, waits, writes = PLACES
    assert in_order(code_of_one_row(case, kernel, uninterpreted)) == [starts, reads, waits, writes]


def test_a_product_lets_attention_start_when_it_has_loaded_or_waited(uninterpreted: Uninterpreted) -> None:
    starts, reads, waits, writes = PLACES
    loaded, waited = [in_order(code_of_one_row(*each, uninterpreted)) for each in BEFORE_ATTENTION]
    assert loaded == [reads, starts, waits, writes]
    assert waited == [reads, waits, starts, writes]
