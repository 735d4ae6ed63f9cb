"""``ProgressBar``: texts done, failed, and their rate, on standard error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from tqdm import tqdm

from draftline.engine.extraction.result import Extraction

_COMPILING = "Compiling"


@contextmanager
def compiling(bar: tqdm[Any], then: str) -> Iterator[None]:
    """Say on a bar that constraints compile, for as long as that takes; ``then`` is its description afterwards."""
    bar.set_description(_COMPILING)
    try:
        yield
    finally:
        bar.set_description(then)


class ProgressBar:
    """The progress of one extraction. It says that the constraint compiles, until the first answer begins."""

    def __init__(self, total: int, *, show: bool) -> None:
        """Show the bar, unless ``show`` is False."""
        self._bar = tqdm(
            total=total, desc=_COMPILING, unit="text", postfix={"failed": 0}, disable=not show, dynamic_ncols=True
        )
        self._failed = 0
        self._begun = False

    def begun(self) -> None:
        """Note that an answer has begun. Later calls have no effect."""
        if not self._begun:
            self._begun = True
            self._bar.set_description("Extracted")

    def add(self, result: Extraction[Any]) -> None:
        """Count a text's result."""
        self.begun()
        self._failed += result.error is not None
        self._bar.set_postfix(failed=self._failed, refresh=False)
        self._bar.update()

    def __enter__(self) -> Self:
        """The bar."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Leave it as it stands."""
        self._bar.close()
