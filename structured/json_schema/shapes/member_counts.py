"""``MemberCounts``: how many members an object in the schema's order needs, and may have, before each of its properties."""

from __future__ import annotations

from typing import Final

from draftline.structured.json_schema.shapes.objects import ObjectShape

MAX_ORDERED: Final = 2_000
"""The most members in the schema's order. Each is a rule within the rule of the one before, and llguidance recurses."""

_MAX_RULES: Final = 10_000
"""The most pairs of a property and a count. Each is a rule of the grammar."""


class MemberCounts:
    """Counts of members that are not required. Required ones always come, so they are not counted.

    Attributes:
        missing: the minimum.
        further: the maximum, or None.
    """

    def __init__(self, shape: ObjectShape) -> None:
        self.missing = max(0, shape.min_members - len(shape.required))
        self.further = None if shape.max_members is None else shape.max_members - len(shape.required)
        self._highest = self.missing if self.further is None else self.further  # higher counts mean the same
        self._endless = bool(shape.others)
        # The number of optional properties from each index on.
        self._left = [0]
        for name, _ in reversed(shape.possible):
            self._left.append(self._left[-1] + (name not in shape.required))
        self._left.reverse()

    @property
    def are_few(self) -> bool:
        """Whether a grammar has room for them."""
        properties = len(self._left) - 1
        return properties <= MAX_ORDERED and properties * (self._highest + 1) <= _MAX_RULES

    def before(self, index: int) -> range:
        """The counts before a property with which the object can still end."""
        least = 0 if self._endless else max(0, self.missing - self._left[index])
        return range(least, min(self._highest, self._left[0] - self._left[index]) + 1)

    def after(self, count: int) -> int | None:
        """The count with one more member; None if there must not be one."""
        return None if count == self.further else min(count + 1, self._highest)

    def rest(self, count: int) -> tuple[int, int | None]:
        """How many members must follow, and how many may."""
        return max(0, self.missing - count), None if self.further is None else self.further - count
