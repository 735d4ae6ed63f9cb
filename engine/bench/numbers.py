"""Numbers of options: batch sizes, numbers of clients."""

from __future__ import annotations


def whole_number(text: str, least: int = 0) -> int:
    """A whole number of at least ``least``.

    Raises:
        ValueError: the text is none.
    """
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise ValueError(f"{text.strip()!r} is no whole number of at least {least}")
    return number


def positive_int(text: str) -> int:
    """A whole number of at least 1.

    Raises:
        ValueError: the text is none.
    """
    return whole_number(text, 1)


def positive_ints(text: str) -> list[int]:
    """Such numbers with commas between them.

    Raises:
        ValueError: one of them is none.
    """
    return [positive_int(part) for part in text.split(",")]
