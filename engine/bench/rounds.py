"""``results_of_rounds``: the results of a benchmark in rounds, also of one that ends early."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

Round = TypeVar("Round")


def results_of_rounds(
    rounds: Iterable[Round], summarize: Callable[[Sequence[Round]], Iterable[dict[str, Any]]]
) -> Iterator[dict[str, Any]]:
    """Take all rounds, and yield their results.

    If an error or Ctrl-C ends the rounds early, the results of those before it have ``interrupted``. Then it is raised.

    Args:
        rounds: measures a round when it is asked for one.
        summarize: makes the fields of results from one round or more.
    """
    taken: list[Round] = []
    try:
        for each in rounds:
            taken.append(each)  # noqa: PERF402 - an error leaves the rounds before it
    except BaseException:
        if taken:
            yield from ({"interrupted": True, **fields} for fields in summarize(taken))
        raise
    yield from summarize(taken)
