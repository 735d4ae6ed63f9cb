"""``Lengths``: a distribution of numbers of tokens, as a user writes it: ``128``, ``64-512``, ``normal:256,64``."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["uniform", "normal", "lognormal"]

FORMS = "N, LOW-HIGH, normal:MEAN,DEVIATION or lognormal:MEDIAN,SIGMA"

MAX_LENGTH = 1 << 24
"""Tokens: more than any context has."""

_BOUNDS = f"lengths begin at 1 and end at {MAX_LENGTH}"


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of lengths. No draw is below ``low`` or above ``high``.

    Attributes:
        low: the shortest length.
        high: the longest length.
        kind: its shape between the two.
        centre: the mean of a normal distribution, the median of a log-normal one.
        spread: the standard deviation: in tokens, or of the logarithm.
    """

    low: int
    high: int
    kind: Kind = "uniform"
    centre: float = 0.0
    spread: float = 0.0

    @staticmethod
    def parse(text: str) -> Lengths:
        """Read one of `FORMS`. Normal and log-normal lengths end at four deviations.

        Raises:
            ValueError: the text has no such form, or a length is less than one.
        """
        text = text.strip()
        if found := re.fullmatch(r"(\d+)(?:-(\d+))?", text):
            low, high = int(found[1]), int(found[2] or found[1])
            if not 1 <= low <= high <= MAX_LENGTH:
                raise ValueError(f"{text!r}: {_BOUNDS}, and the first is not above the second")
            return Lengths(low, high)
        found = re.fullmatch(r"(normal|lognormal):(\d+(?:\.\d+)?),(\d+(?:\.\d+)?)", text)
        if found is None:
            raise ValueError(f"{text!r} is not {FORMS}")
        centre, spread = float(found[2]), float(found[3])
        if not 1 <= centre <= MAX_LENGTH or spread > MAX_LENGTH:
            raise ValueError(f"{text!r}: {_BOUNDS}")
        if found[1] == "normal":
            low, high = max(1, round(centre - 4 * spread)), min(MAX_LENGTH, round(centre + 4 * spread))
            return Lengths(low, high, "normal", centre, spread)
        if spread > 3:
            raise ValueError(f"{text!r}: SIGMA is the deviation of the logarithm, at most 3")
        factor = 2.718281828459045 ** (4 * spread)
        low, high = max(1, round(centre / factor)), min(MAX_LENGTH, round(centre * factor))
        return Lengths(low, high, "lognormal", centre, spread)

    def draw(self, rng: random.Random) -> int:
        """Draw one length."""
        if self.kind == "uniform":
            return rng.randint(self.low, self.high)
        drawn = (
            rng.gauss(self.centre, self.spread)
            if self.kind == "normal"
            else self.centre * rng.lognormvariate(0, self.spread)
        )
        return min(max(round(drawn), self.low), self.high)

    def __str__(self) -> str:
        """The form that `parse` reads."""
        if self.kind != "uniform":
            return f"{self.kind}:{self.centre:g},{self.spread:g}"
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"
