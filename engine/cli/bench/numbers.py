"""Options that are lists of numbers."""

from __future__ import annotations

from draftline.engine.bench.numbers import positive_ints
from draftline.engine.errors import UsageError


def option_ints(option: str, text: str) -> list[int]:
    """The numbers of an option, each 1 or more, with commas between them.

    Raises:
        UsageError: one of them is none.
    """
    try:
        return positive_ints(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None
