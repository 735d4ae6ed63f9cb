"""The next smaller division of a product, for devices with less shared memory than the one that it was tuned on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol, TypeVar


class _Product(Protocol):
    """What all divisions of products have. Each is a dataclass."""

    @property
    def block_n(self) -> int: ...  # output columns a program
    @property
    def block_k(self) -> int: ...  # channels an iteration
    @property
    def num_stages(self) -> int: ...  # depth of the pipeline


_ProductT = TypeVar("_ProductT", bound=_Product)


def smaller_product(division: _ProductT, least_k: int) -> _ProductT | None:
    """First a pipeline of three, then fewer channels an iteration, then a pipeline of two, then fewer columns.

    Channels keep their order, so that the results keep their bits.

    Args:
        division: the division.
        least_k: the fewest channels an iteration.
    """
    if division.num_stages > 3:
        return _with(division, num_stages=division.num_stages - 1)
    if division.block_k > least_k:
        return _with(division, block_k=division.block_k // 2)
    if division.num_stages > 2:
        return _with(division, num_stages=2)
    if division.block_n > 16:
        return _with(division, block_n=division.block_n // 2)
    return None


def smaller_early_product(division: _ProductT, early: int, least_k: int) -> _ProductT | None:
    """`smaller_product` of a division that loads ``early`` tiles before its loop: first fewer of these."""
    if early:
        return _with(division, early=early // 2, num_stages=max(division.num_stages, 3))
    return smaller_product(division, least_k)


def _with(division: _ProductT, **changes: Any) -> _ProductT:
    smaller: _ProductT = replace(division, **changes)  # type: ignore[type-var]
    return smaller
