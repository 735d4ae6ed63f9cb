"""Numbers of options: batch sizes, numbers of clients."""

from __future__ import annotations


def positive_int(text: str) -> int:
    """A whole number of at least 1.

    Raises:
        ValueError: the text is none.
    """
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise ValueError(f"{text.strip()!r} is no whole number of at least 1")
    return number


def positive_ints(text: str) -> list[int]:
    """Such numbers with commas between them.

    Raises:
        ValueError: one of them is none.
    """
    return [positive_int(part) for part in text.split(",")]
