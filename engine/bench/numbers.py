"""Numbers and lists of options: batch sizes, numbers of clients, names."""

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


def names(text: str) -> list[str]:
    """Names with commas between them, without spaces around them, and without the empty ones."""
    return [name.strip() for name in text.split(",") if name.strip()]
