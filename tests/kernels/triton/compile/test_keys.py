"""The keys of kernels in Triton's cache."""

from __future__ import annotations

from typing import Any

import pytest
import triton.language as tl
from triton.runtime.jit import JITFunction

import draftline.kernels.triton  # noqa: F401  settles the keys

_STEP = tl.constexpr(3)


def _called(x: Any) -> Any:
    return x + _STEP


def _kernel(x: Any) -> None:
    tl.store(x, _called(tl.load(x)))


@pytest.mark.parametrize("called_first", [False, True])
def test_a_kernel_s_key_covers_the_constants_of_what_it_calls(
    called_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = JITFunction(_called)
    monkeypatch.setitem(globals(), "_called", called)
    if called_first:
        assert called.cache_key
    kernel = JITFunction(_kernel)
    assert kernel.cache_key
    assert "_STEP" in [name for name, _ in kernel.used_global_vals]
