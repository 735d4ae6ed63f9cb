"""``ProgressBar``: texts done, failed, and their rate, on standard error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from tqdm import tqdm

from draftline.engine.extraction.result import Extraction

_EXTRACTED = "Extracted"


@contextmanager
def compiling(bar: tqdm[Any], then: str) -> Iterator[None]:
    """Say on a bar that constraints compile, for as long as that takes; ``then`` is its description afterwards."""
    bar.set_description("Compiling")
    try:
        yield
    finally:
        bar.set_description(then)


class ProgressBar:
    """The progress of one extraction."""

    def __init__(self, total: int, *, show: bool) -> None:
        """Show the bar, unless ``show`` is False."""
        self._bar = tqdm(
            total=total, desc=_EXTRACTED, unit="text", postfix={"failed": 0}, disable=not show, dynamic_ncols=True
        )
        self._failed = 0

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Say that the constraint compiles, for as long as that takes."""
        with compiling(self._bar, _EXTRACTED):
            yield

    def add(self, result: Extraction[Any]) -> None:
        """Count a text's result."""
        self._failed += result.error is not None
        self._bar.set_postfix(failed=self._failed, refresh=False)
        self._bar.update()

    def __enter__(self) -> Self:
        """The bar."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Leave it as it stands."""
        self._bar.close()
