"""``ProgressBar``: texts done, failed, and their rate, on standard error."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from tqdm import tqdm

from draftline.engine.extraction.result import Extraction


class ProgressBar:
    """The progress of one extraction."""

    def __init__(self, total: int, *, show: bool) -> None:
        """Show the bar, unless ``show`` is False."""
        self._bar = tqdm(
            total=total, desc="Extracted", unit="text", postfix={"failed": 0}, disable=not show, dynamic_ncols=True
        )
        self._failed = 0

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
