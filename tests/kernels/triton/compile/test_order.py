"""The order of sums in what the compiler makes of kernels, so that no change divides a sum unseen.

Results are the same bits in every batch because each is one chain of additions: see `linear/dense.py` and
`attention/online_softmax.py`. A kernel that another program helps with a part of K, or that the compiler gives another order,
would pass every test of its error. Representative launches are compiled for compute capability 9.0, which needs no GPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from uninterpreted import Uninterpreted

pytestmark = pytest.mark.long

PRODUCTS = {
    "dense, few rows": ("llama-8b-decode", "_gemm_m16_kernel", {"SWIGLU": False}, 4096),
    "dense, tens": ("llama-8b-tens", "_gemm_kernel", {"SWIGLU": False}, 4096),
    "dense, many": ("llama-8b-chunk", "_gemm_kernel", {"SWIGLU": False}, 4096),
    # Its loop counts tiles of twice 128 channels.
    "fp8, few rows": ("llama-8b-fp8-4", "_scaled_gemm_m16_kernel", {"SWIGLU": False}, 16),
    "fp8, many": ("llama-8b-fp8-512", "_scaled_gemm_kernel", {"SWIGLU": True}, 4096),
    "fp8-block, tens": ("llama-8b-fp8-block-40", "_scaled_gemm_kernel", {"SWIGLU": False}, 4096),
    "int8, many": ("llama-8b-int8-512", "_scaled_gemm_kernel", {"SWIGLU": True}, 4096),
}
"""The case of `aot_cases.py`, the kernel, constants that choose a launch of it, and the end of its loop for 4,096 channels."""

TILES_OF_ONE_SUM = {"fp8, few rows": 4, "fp8, many": 4, "fp8-block, tens": 1}
"""Products that sum groups of channels on their own, and then add them, one after the other."""

IN_PARTS = {
    "few rows, all early": ("smollm2-135m-decode", "_gemm_m16_parts_kernel", {"K": 1536}, 1536),
    "few rows, norm inside": ("smollm2-135m-one", "_gemm_m16_parts_kernel", {"NORM": True}, 576),
    "few rows, in a loop": ("qwen3-0.6b-tens", "_gemm_m16_parts_kernel", {"K": 3072}, 3072),
    "hundreds": ("smollm2-135m-wide", "_gemm_kernel", {"PART": 384}, 0),
    "thousands": ("qwen3-0.6b-chunks", "_gemm_kernel", {"PART": 768}, 0),
}
"""Products whose sums are in four parts (`linear/parts.py`)."""

ATTENTION = {
    "decode, int8": ("llama-8b-int8-cache-one", "decode_attention_kernel", {}, 0),
    "verify, fp8": ("llama-8b-fp8-cache-verify", "decode_attention_kernel", {}, 0),
    "decodes, int8": ("llama-8b-int8-cache-wide", "decode_attention_kernel", {}, 0),
    "chunk": ("qwen3-0.6b-mixed", "_chunk_attention_kernel", {}, 0),
    "chunk, int8": ("llama-8b-int8-cache-mixed", "_chunk_attention_kernel", {}, 0),
    "beside a chunk": ("qwen3-0.6b-mixed", "decode_attention_kernel", {"NEW": 0}, 0),
    "beside a chunk, int8": ("qwen3-0.6b-int8-cache-mixed", "decode_attention_kernel", {"NEW": 0}, 0),
}

_CODE = """
from compiled_text import text_of
from draftline.kernels.triton.compile.aot import collect
from draftline.kernels.triton.compile.aot_cases import CASES, OPS

def code(case, kernel, constants, steps):
    for launch in collect({case: CASES[case]}, OPS[90]):
        if launch.kernel == kernel and constants.items() <= dict(launch.constants).items():
            if dict(launch.constants).get("K", 4096) in (4096, steps):
                return text_of(launch, "ttgir")
    raise LookupError(f"{case} launches no such {kernel}")

found = code(case, kernel, constants, steps)
"""

_LAUNCHED = """
from compiled_text import text_of
from draftline.kernels.triton.compile.aot import collect
from draftline.kernels.triton.compile.aot_cases import CASES, OPS

def one_tile():
    for launch in collect({"one-tile": CASES["one-tile"]}, OPS[90]):
        if launch.kernel == "_gemm_m16_kernel":
            yield text_of(launch, "ttir")

found = {
    "one_tile": list(one_tile()),
    "launched": [[launch.kernel, dict(launch.options)] for ops in OPS.values() for launch in collect(CASES, ops)],
}
"""


@dataclass(frozen=True)
class Found:
    """What the process found: kernels with the options of their launches, and the code of products of one tile."""

    launched: list[tuple[str, dict[str, Any]]]
    one_tile: list[str]


@pytest.fixture(scope="module")
def found(uninterpreted: Uninterpreted) -> Found:
    return Found(**uninterpreted.find(_LAUNCHED))


@pytest.fixture(scope="module")
def code_of(uninterpreted: Uninterpreted) -> Callable[[str], str]:
    """A name's code, which is compiled for the first test that needs it."""

    @cache
    def code(name: str) -> str:
        case, kernel, constants, steps = {**PRODUCTS, **IN_PARTS, **ATTENTION}[name]
        text: str = uninterpreted.find(_CODE, case=case, kernel=kernel, constants=constants, steps=steps)
        return text

    return code


SLOW = {
    *("dense, tens", "fp8, many", "fp8-block, tens"),
    *("few rows, in a loop", "thousands"),
    *("verify, fp8", "decodes, int8", "beside a chunk"),
}
"""Of which others have the kernel, and the kind of loop."""


def named(names: Iterable[str]) -> list[ParameterSet]:
    return [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in names]


@dataclass(frozen=True)
class Dot:
    """A product of tiles: its result's name, and the name of the sums that it is added to."""

    result: str
    sums: str


def dots_of(code: str) -> list[Dot]:
    pattern = r"(%[\w#]+) = (?:tt\.dot|ttng\.warp_group_dot) %[\w#]+, %[\w#]+, (%[\w#]+)"
    return [Dot(*groups) for groups in re.findall(pattern, code)]


def zeros_of(code: str) -> set[str]:
    """Names of constant tiles of zeros."""
    return set(re.findall(r"(%\w+) = arith\.constant dense<(?:0\.0+e\+00|0)> : tensor", code))


def sums_of(code: str) -> list[str]:
    """The shapes of tiles whose floats are added along an axis of more than two: two terms have one order."""
    reductions = re.findall(
        r'"tt\.reduce"\(\S+\) <\{axis = (\d+) : i32\}> \(\{(.*?)tt\.reduce\.return.*?\}\) : \(tensor<(\S+)x\w+, ', code, re.DOTALL
    )  # fmt: skip
    return [shape for axis, body, shape in reductions if "arith.addf" in body and shape.split("x")[int(axis)] != "2"]


@pytest.mark.parametrize("name", named(PRODUCTS))
def test_a_product_is_one_chain_over_all_channels(name: str, code_of: Callable[[str], str]) -> None:
    code, steps, tiles = code_of(name), PRODUCTS[name][3], TILES_OF_ONE_SUM.get(name)
    loop = r"scf\.for %\S+ = %c(\d+)_i32 to %(\w+) step %c(\d+)_i32 iter_args\((.*?)\) ->"
    ((begin, end, step, carried),) = re.findall(loop, code)
    early, inside = map(dots_of, re.split(loop.partition(" ")[0], code))
    # K is an argument, or a constant of the kernel.
    assert end in ("K", f"c{steps}_i32"), "a program has all of K"
    assert int(begin) == len(early) * int(step), "tiles that are loaded early are the first ones"
    zeros = zeros_of(code)
    for index, (before, dot) in enumerate(zip([None, *early], early, strict=False)):
        begins = before is None or (tiles is not None and index % tiles == 0)
        assert dot.sums in zeros if begins else dot.sums == before.result
    starts = dict(re.findall(r"(%\w+) = (%[\w#]+)", carried))
    (dot,) = inside
    if tiles == 1:
        assert dot.sums in zeros, "each group has a sum of its own"
    else:
        # Each step adds to the sums of the step before.
        assert starts[dot.sums] in (zeros if tiles is not None or not early else {early[-1].result})
    added_to = re.findall(r"(?:arith\.addf|math\.fma %[\w#]+, %[\w#]+,) (%\w+)[, ]", code)
    assert sum(name in starts for name in added_to) == (0 if tiles is None else 1), "to these, groups are added"
    assert "tt.atomic" not in code, "no other program adds to the result"
    assert not sums_of(code)


@pytest.mark.parametrize("name", named(IN_PARTS))
def test_a_product_in_parts_is_four_chains_added_in_order(name: str, code_of: Callable[[str], str]) -> None:
    code, zeros = code_of(name), zeros_of(code_of(name))
    few = name.startswith("few")
    before = None
    for dot in dots_of(code):
        carried = dict(re.findall(r"(%\w+) = (%[\w#]+)", "".join(re.findall(r"iter_args\((.*?)\) ->", code))))
        begin = carried.get(dot.sums, dot.sums)
        assert begin in zeros if before is None else begin == before, "a part is one chain"
        before = dot.result
    assert before is not None
    assert all("tensor<4x" in line.rpartition("->")[2] for line in code.splitlines() if " tt.dot " in line), (
        "a part a warp"
    )
    # Few rows add three parts to the first, many each part to the total; then the residual stream is added, where there is one.
    additions = 3 if few else 2
    assert len(re.findall(r"= math\.fma ", code)) in (additions, additions + 1)
    assert "tt.atomic" not in code
    assert not sums_of(code)


def test_a_sum_of_one_tile_begins_at_zero(found: Found) -> None:
    """The compiler would begin it with what a plain addition adds to it: a bias, or the residual stream."""
    assert len(found.one_tile) >= 3, "plain, added to the residual stream, SwiGLU"
    for code in found.one_tile:
        (dot,) = dots_of(code)
        assert dot.sums in zeros_of(code)


@pytest.mark.parametrize("name", named(ATTENTION))
def test_each_tile_of_keys_is_a_softmax_of_its_own(name: str, code_of: Callable[[str], str]) -> None:
    code = code_of(name)
    dots = dots_of(code)
    assert len(dots) >= 2, "scores and values"
    assert {dot.sums for dot in dots} <= zeros_of(code)
    assert not sums_of(code), "the weights are added as a tree"
    assert all(": (!tt.ptr<i32>" in line for line in code.splitlines() if "tt.atomic" in line), "atomics only count"


# The tiles of chunks are products of warp groups, which have one order.
@pytest.mark.parametrize("name", named(name for name in ATTENTION if not name.startswith("chunk")))
def test_neither_cache_nor_rotation_changes_the_order_of_products(name: str, code_of: Callable[[str], str]) -> None:
    """Of eight-bit tiles (`kv_cache._hidden`) and of joined ones the compiler would take four channels at a time of each thread."""
    widths = set(re.findall(r"kWidth = (\d+)", "\n".join(re.findall(r"tt\.dot .*", code_of(name)))))
    assert widths == {"2"}


MULTIPLIES_NOTHING = {
    "_accept_kernel", "_advance_kernel", "_allow_kernel", "_bad_words_kernel", "_bias_kernel", "_constrain_kernel", "_count_kernel", "_deliver_kernel", "_draft_forced_kernel", "_draft_kernel",
    "_gather_drafts_kernel", "_gather_kernel", "_learn_kernel", "_ngram_kernel", "_note_time_kernel", "_receive_kernel", "_receive_with_writes_kernel",
    "_receive_writes_kernel",
}  # fmt: skip
"""Kernels without products of floats."""


def test_the_compiler_fuses_no_multiplication_with_an_addition(found: Found) -> None:
    """It would choose by a kernel's other code, so that variants of one arithmetic round in different ways."""
    fused = {kernel for kernel, options in found.launched if options.get("enable_fp_fusion") is not False}
    assert fused <= MULTIPLIES_NOTHING
