"""Kernels compiled ahead of their first launch, in this process and in others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from triton import knobs

from draftline.kernels.triton.compile.ahead import CompileAhead
from draftline.kernels.triton.compile.later import CompileLater
from draftline.kernels.triton.pointwise.activations import silu_mul
from draftline.kernels.triton.pointwise.norms import rms_norm


@triton.jit
def _add_kernel(x: tl.tensor, amount: int, SIZE: tl.constexpr, NAME: tl.constexpr) -> None:
    place = tl.arange(0, SIZE)
    tl.store(x + place, tl.load(x + place) + amount)


Compiled = Callable[[], int]


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiled:
    """How many kernels this process has compiled outside of rehearsals, in a cache that was empty."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    misses: list[str] = []
    monkeypatch.setattr(
        knobs.compilation,
        "listener",
        lambda *, src, cache_hit, **_: None if cache_hit else misses.append(src.name),
    )
    return lambda: len(misses)


def test_kernels_are_compiled_without_having_run(compiled: Compiled) -> None:
    x = torch.zeros(64, device="cuda")
    _add_kernel[(1,)](x, 7, SIZE=64, NAME="known")
    ahead = CompileAhead(torch.device("cuda"))
    with ahead.rehearsal():
        for name in ("known", "one", "two", "three"):
            for _ in range(2):
                _add_kernel[(1,)](x, 7, SIZE=64, NAME=name)
        y = x + 1  # torch's own kernels do not run either
    del y
    ahead.load()
    assert ahead.missing
    assert x.tolist() == [7.0] * 64
    before = compiled()
    for name in ("one", "two", "three"):
        _add_kernel[(1,)](x, 7, SIZE=64, NAME=name)
    assert x.tolist() == [28.0] * 64
    assert compiled() == before
    _add_kernel[(1,)](x, 7, SIZE=64, NAME="four")
    assert compiled() == before + 1


def test_other_processes_compile(compiled: Compiled) -> None:
    """All but the first kernel, which tells that the others are missing."""
    batches = [
        torch.randn(rows, 2 * n, device="cuda", dtype=torch.bfloat16) for rows in (1, 100) for n in (48, 80, 176)
    ]
    ahead = CompileAhead(torch.device("cuda"))
    with ahead.rehearsal():
        for batch in batches:
            silu_mul(batch, overlap=False)
    ahead.load()
    assert ahead.missing
    for batch in batches:
        gate, up = batch.float().chunk(2, -1)
        torch.testing.assert_close(
            silu_mul(batch, overlap=False).float(), torch.nn.functional.silu(gate) * up, rtol=1e-2, atol=1e-2
        )
    assert compiled() == 0


def test_they_compile_kernels_that_call_others(compiled: Compiled) -> None:
    """Constants of what a kernel calls belong to its key, in whichever order kernels come."""
    x, weight = (torch.ones(*size, device="cuda", dtype=torch.bfloat16) for size in ((3, 336), (336,)))
    ahead = CompileAhead(torch.device("cuda"))
    with ahead.rehearsal():
        silu_mul(x, overlap=False)
        for overlap in (True, False):
            rms_norm(x, weight, 1e-5, overlap=overlap)
    ahead.load()
    assert compiled() == 0
    torch.testing.assert_close(rms_norm(x, weight, 1e-5), x)
    assert compiled() == 0


def test_what_is_compiled_needs_no_rehearsal(compiled: Compiled) -> None:
    batch = torch.randn(3, 2 * 208, device="cuda", dtype=torch.bfloat16)
    expected = silu_mul(batch, overlap=False)
    ahead = CompileAhead(torch.device("cuda"))
    with ahead.rehearsal():
        silu_mul(batch, overlap=False)
    ahead.load()
    assert not ahead.missing
    assert torch.equal(silu_mul(batch, overlap=False), expected)
    assert compiled() == 1


def test_kernels_are_compiled_behind_a_start(compiled: Compiled) -> None:
    batches = [torch.randn(3, 2 * n, device="cuda", dtype=torch.bfloat16) for n in (112, 144)]
    ahead = CompileAhead(torch.device("cuda"))
    with ahead.rehearsal():
        rms_norm(torch.ones(3, 352, device="cuda"), torch.ones(352, device="cuda"), 1e-5)  # which is missing
        with ahead.postponing():
            for batch in batches:
                silu_mul(batch, overlap=False)
    ahead.load()
    assert len(ahead.postponed) == 2
    CompileLater(torch.device("cuda"), ahead.postponed).run()
    before = compiled()
    for batch in batches:
        gate, up = batch.float().chunk(2, -1)
        torch.testing.assert_close(
            silu_mul(batch, overlap=False).float(), torch.nn.functional.silu(gate) * up, rtol=1e-2, atol=1e-2
        )
    assert compiled() == before == 0
