"""Types of benchmarks' arguments, for ``argparse``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeVar

from draftline.engine.bench import numbers

Value = TypeVar("Value")


def _argument(read: Callable[[str], Value]) -> Callable[[str], Value]:
    """The same reading of a text, whose error ``argparse`` shows."""

    def argument(text: str) -> Value:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return argument


positive_int = _argument(numbers.positive_int)
positive_ints = _argument(numbers.positive_ints)
