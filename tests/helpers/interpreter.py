"""Triton's interpreter in tests: its products in the order of the matrix units, and faster calls."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle


def dot_in_order(_: object, a: TensorHandle, b: TensorHandle, total: TensorHandle, *precision: object) -> TensorHandle:
    """`InterpreterBuilder.create_dot`, adding one channel after the other to one sum.

    The original multiplies by NumPy, whose order of additions follows a tile's shape.
    """
    left, right = _numbers(a), _numbers(b)
    sums = total.data.copy()
    for channel in range(left.shape[-1]):
        sums += left[:, channel, None].astype(sums.dtype) * right[channel].astype(sums.dtype)
    return TensorHandle(sums, total.dtype.scalar)


def _numbers(factor: TensorHandle) -> np.ndarray:
    if factor.dtype.scalar == tl.float8e4nv:
        return torch.from_numpy(factor.data.view(np.uint8)).view(torch.float8_e4m3fn).float().numpy()
    return factor.data


def patch_builtin(package: Any, *rest: object) -> None:
    """`interpreter._patch_builtin`, looking for a package's builtins once.

    The original goes through all of Triton's names at every call of a device function, which took half of these tests' time.
    """
    for name in _builtins(package):
        member = getattr(package, name)
        if tl.core.is_builtin(member):
            interpreter._patch_attr(package, name, member, *rest)


@cache
def _builtins(package: Any) -> list[str]:
    return [name for name in dir(package) if tl.core.is_builtin(getattr(package, name, None))]
