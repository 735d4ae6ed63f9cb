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

import triton.language as tl
from interpreter import dot_in_order
from triton.runtime import interpreter

from draftline.kernels.triton.attention import join


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
    """Products add one channel after the other, as the matrix units do; a GPU needs nothing for that."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot_in_order)


@pytest.fixture
def short_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter loads a few tiles at a time, where it would spend most of the time on tiles that short histories lack.

    `attention/test_join.py` and `attention/test_uneven.py` load as many as in production.
    """
    if not torch.cuda.is_available():
        monkeypatch.setattr(join, "_FEW_TOGETHER", 2)
        monkeypatch.setattr(join, "_MANY_TOGETHER", tl.constexpr(4))
