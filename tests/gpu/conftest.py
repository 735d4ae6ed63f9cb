"""What the tests of GPUs share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def nothing_compiled_behind() -> Iterator[None]:
    """Engines compile nothing behind their start: of many short ones, each would take the others' cores."""
    from draftline.kernels.triton.compile.later import CompileLater

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(CompileLater, "start", lambda self: None)
        yield
