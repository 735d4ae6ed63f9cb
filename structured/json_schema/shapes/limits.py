"""Bounds on the cases of a normalised form, each of which is one shape of a type; and the least of several bounds."""

from __future__ import annotations

from typing import Final

MAX_SHAPES: Final = 2_048
"""The most cases of one type while schemas are intersected. Most of them are impossible, or contained in others."""

MAX_CASES: Final = 256
"""The most cases of one type in a language: a parser follows all of them side by side."""


def least(*bounds: int | None) -> int | None:
    """The smallest upper bound; None if there is none."""
    return min((bound for bound in bounds if bound is not None), default=None)


class TooManyShapesError(ValueError):
    """An intersection or a union has more cases than the budget allows."""
