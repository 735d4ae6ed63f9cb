"""How a rule's 64-bit parameter remembers which members of an object have been written, and llguidance's conditions on it."""

from __future__ import annotations

from typing import Final

from draftline.structured.json_schema.shapes import NEVER, ObjectShape

BITS: Final = 64


class Layout:
    """Which bit of an object's parameter means what.

    Required properties come first, then what some member must be, whether there was an unnamed member, a counter of commas, and optional
    properties as far as bits are left: one without a bit may be written twice, which leaves the object valid.
    """

    def __init__(self, shape: ObjectShape) -> None:
        required = [name for name, value in shape.named if name in shape.required and value != NEVER]
        optional = [name for name, value in shape.named if name not in shape.required and value != NEVER]
        self.bit_of = {name: bit for bit, name in enumerate(required)}
        self.some_bit = len(required)
        used = self.some_bit + len(shape.some)
        self.other_bit: int | None = None
        self.counter = ""
        self.room = ""
        conditions = [f"is_ones([0:{used}])"] if used else []
        if shape.min_members and shape.others and not shape.some:
            self.other_bit = used
            used += 1
        if shape.max_members is not None and shape.others:
            width = shape.max_members.bit_length()
            self.counter = f"[{used}:{used + width}]"
            used += width
        start = used
        kept = optional[: BITS - used]
        self.bit_of.update((name, start + index) for index, name in enumerate(kept))
        if shape.max_members is not None and not shape.others:
            # All members are named: those required, and optional ones up to the rest.
            self.room = _count("lt", start, len(kept), shape.max_members - len(required))
        if shape.min_members and not shape.some:
            enough = _count("ge", start, len(kept), shape.min_members - len(required))
            if self.other_bit is not None:
                # One unnamed member is enough, since no more than one is missing beside the required ones.
                enough = f"or({enough}, bit_set({self.other_bit}))" if kept else f"bit_set({self.other_bit})"
            conditions.append(enough)
        self.done = both_of(*conditions)


def _count(comparison: str, start: int, width: int, bound: int) -> str:
    return f"bit_count_{comparison}([{start}:{start + width}], {bound})"


def both_of(*conditions: str) -> str:
    """All of the conditions that are not empty."""
    given = [condition for condition in conditions if condition]
    if not given:
        return ""
    joined = given[0]
    for condition in given[1:]:
        joined = f"and({joined}, {condition})"
    return joined


def when(condition: str) -> str:
    """What makes an alternative depend on a condition; nothing for an empty one."""
    return f" %if {condition}" if condition else ""
