"""How a rule's 64-bit parameter remembers which members of an object have been written, and llguidance's conditions on it."""

from __future__ import annotations

from typing import Final

from draftline.structured.json_schema.shapes import NEVER, ObjectShape

BITS: Final = 64


class Layout:
    """Which bit of an object's parameter means what.

    Required properties come first, then what some member must be, whether there was an unnamed member, a counter of members that are not
    required, and optional properties as far as bits are left: one without a bit may be written twice, which leaves the
    object valid. Members that are not required are counted apart, so that there is always room for those that are.

    Attributes:
        bit_of: the bits of properties.
        some_bit: the first of those of ``some``, in order.
        other_bit: set by an unnamed member; None where it does not matter.
        counter: the range of bits that counts; empty where none does.
        one: the parameter with the counter at one.
        room: whether a member that is not required may follow.
        done: whether the object may end.
    """

    def __init__(self, shape: ObjectShape) -> None:
        required = [name for name, value in shape.named if name in shape.required and value != NEVER]
        optional = [name for name, value in shape.named if name not in shape.required and value != NEVER]
        self.bit_of = {name: bit for bit, name in enumerate(required)}
        self.some_bit = len(required)
        used = self.some_bit + len(shape.some)
        self.other_bit: int | None = None
        self.counter = ""
        self.one = 0
        self.room = ""
        conditions = [f"is_ones([0:{used}])"] if used else []
        if shape.min_members and shape.others and not shape.some:
            self.other_bit = used
            used += 1
        further = None if shape.max_members is None else shape.max_members - len(required)
        if further is not None and shape.others:
            width = further.bit_length()
            self.counter = f"[{used}:{used + width}]"
            self.one = 1 << used
            self.room = f"lt({self.counter}, {further})"
            used += width
        start = used
        kept = optional[: BITS - used]
        self.bit_of.update((name, start + index) for index, name in enumerate(kept))
        if further is not None and not shape.others:
            self.room = _count("lt", start, len(kept), further)
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
