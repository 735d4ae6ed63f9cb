"""``QueueOrder``: in which order waiting requests are served (--scheduling). A request's place never changes.

`FairShares` is the default. The others are those of textbooks and of other engines: each starves some requests while
others keep coming, which `FairShares` does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from typing_extensions import override

from draftline.engine.scheduling.fairness import FairShares


class QueueOrder(Protocol):
    """Gives each new request its place in the queue. One thread uses it."""

    def order(self, caller: str, weight: float, head_start_s: float, tokens: int, now: float) -> float:
        """The place of a new request; smaller comes first, and of equal ones the first to arrive.

        See `FairShares.order`.
        """
        ...

    def measure(self, tokens: int, seconds: float) -> None:
        """Note that a step computed ``tokens`` in ``seconds``, if the order depends on that."""


class ArrivalOrder(QueueOrder):
    """First come, first served, without regard to the caller."""

    @override
    def order(self, caller: str, weight: float, head_start_s: float, tokens: int, now: float) -> float:
        return now


class PriorityOrder(QueueOrder):
    """The highest priority first, however long others have waited."""

    @override
    def order(self, caller: str, weight: float, head_start_s: float, tokens: int, now: float) -> float:
        return -head_start_s


class ShortestFirst(QueueOrder):
    """The request with the fewest tokens first, prompt and the most that it may generate together."""

    @override
    def order(self, caller: str, weight: float, head_start_s: float, tokens: int, now: float) -> float:
        return float(tokens)


ORDERS: Mapping[str, Callable[[], QueueOrder]] = {
    "fair": FairShares,
    "fcfs": ArrivalOrder,
    "priority": PriorityOrder,
    "shortest": ShortestFirst,
}
"""By the option ``scheduling``."""
