"""Kernel tests run on a GPU where there is one, and in Triton's interpreter elsewhere; in float32 in both cases."""

from __future__ import annotations

import os
import sys

import pytest
import torch

if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    if "triton" in sys.modules:
        raise RuntimeError("triton was imported before TRITON_INTERPRET=1 was set: tests/conftest.py has to set it")
    os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where kernels run here."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def rng(device: torch.device) -> torch.Generator:
    """The same numbers in every run."""
    return torch.Generator(device).manual_seed(1)


@pytest.fixture
def dots_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products add one channel after the other to one sum, as the matrix units do.

    The interpreter multiplies by NumPy, whose order of additions follows a tile's shape. A GPU needs nothing.
    """
    if not torch.cuda.is_available():
        monkeypatch.setattr(InterpreterBuilder, "create_dot", _dot_in_order)


def _dot_in_order(
    _: InterpreterBuilder, a: TensorHandle, b: TensorHandle, total: TensorHandle, *precision: object
) -> TensorHandle:
    left, right = _operand(a), _operand(b)
    sums = total.data.copy()
    for channel in range(left.shape[-1]):
        sums += left[:, channel, None].astype(sums.dtype) * right[channel].astype(sums.dtype)
    return TensorHandle(sums, total.dtype.scalar)


def _operand(factor: TensorHandle) -> np.ndarray:
    if factor.dtype.scalar == tl.float8e4nv:
        return torch.from_numpy(factor.data.view(np.uint8)).view(torch.float8_e4m3fn).float().numpy()
    return factor.data
