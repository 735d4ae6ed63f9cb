"""``AXES``: what a sweep can vary. Each value of an axis is a load with other options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from draftline.engine.bench.load.config import MAX_RATE, LoadConfig
from draftline.engine.bench.load.lengths import Lengths
from draftline.engine.bench.numbers import positive_int
from draftline.engine.options import flag

Changes = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Axis:
    """One option of a sweep.

    Attributes:
        field: its field in a line.
        label: its name on the axis of a plot.
        sets: the options of a load that it sets. None of them may be given as well.
        changes: the options of one value, which it reads from a text.
    """

    field: str
    label: str
    sets: tuple[str, ...]
    changes: Callable[[LoadConfig, str], Changes]


def _clients(load: LoadConfig, text: str) -> Changes:
    clients = positive_int(text)
    # Each client sends several requests, so that the load is steady for most of the time.
    conversations = max(load.resolved().conversations, 4 * clients)
    return {"arrivals": "closed", "max_concurrent": clients, "conversations": conversations}


def _rate(load: LoadConfig, text: str) -> Changes:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate <= MAX_RATE:
        raise ValueError(f"{text!r} is no rate, above 0 and at most {MAX_RATE:,}")
    if load.arrivals == "closed":
        raise ValueError("a closed loop has none; leave out --arrivals closed")
    return {"rate": rate}


AXES: Mapping[str, Axis] = {
    "clients": Axis("clients", "clients", ("arrivals", "rate", "max_concurrent"), _clients),
    "rates": Axis("rate", "conversations/s", ("rate",), _rate),
    "prompt_lens": Axis(
        "prompt_len",
        "new tokens of a turn",
        ("prompt_len",),
        lambda load, text: {"prompt_len": str(Lengths.parse(text))},
    ),
    "output_lens": Axis(
        "output_len",
        "tokens of an answer",
        ("output_len",),
        lambda load, text: {"output_len": str(Lengths.parse(text))},
    ),
}

SWEPT_FIELDS = tuple(axis.field for axis in AXES.values())
"""The fields of lines that a sweep may vary."""


def label_of(field: str) -> str:
    """What the axis of a plot over a field of lines is called."""
    return next((axis.label for axis in AXES.values() if axis.field == field), field.replace("_", " "))


def at(load: LoadConfig, values: Mapping[str, str]) -> LoadConfig:
    """The load at one value of each of some axes.

    Raises:
        ValueError: a value is wrong, or an option is given that an axis sets. The message names the option.
    """
    changes: dict[str, object] = {}
    for name, text in values.items():
        for option in AXES[name].sets:
            if getattr(load, option) is not None:
                raise ValueError(f"{flag(name)} and {flag(option)}: set one of them")
        try:
            changes |= AXES[name].changes(load, text.strip())
        except ValueError as error:
            raise ValueError(f"{flag(name)}: {error}") from None
    return load.model_copy(update=changes)
