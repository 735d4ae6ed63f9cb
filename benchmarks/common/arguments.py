"""Types of benchmarks' arguments, for ``argparse``."""

from __future__ import annotations

import argparse


def positive_int(text: str) -> int:
    """A whole number of at least 1."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return number


def positive_ints(text: str) -> list[int]:
    """Such numbers with commas between them."""
    return [positive_int(part) for part in text.split(",")]
