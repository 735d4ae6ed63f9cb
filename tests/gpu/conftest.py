"""What the tests of GPUs share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from draftline.kernels.triton.ops import TritonOps


@pytest.fixture(scope="module", autouse=True)
def nothing_compiled_behind() -> Iterator[None]:
    """Engines compile nothing behind their start: of many short ones, each would take the others' cores."""
    from draftline.kernels.triton.compile.later import CompileLater

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(CompileLater, "start", lambda self: None)
        yield


@pytest.fixture(scope="module")
def device() -> torch.device:
    """The GPU."""
    return torch.device("cuda")


@pytest.fixture(scope="module")
def ops(device: torch.device) -> TritonOps:
    """Its operations."""
    from draftline.kernels.triton.ops import TritonOps

    return TritonOps.for_device(device)


@pytest.fixture
def rng(device: torch.device) -> torch.Generator:
    """Draws the same in each test."""
    return torch.Generator(device).manual_seed(7)
