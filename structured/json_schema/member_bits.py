"""``Layout``: the 64-bit parameter of a grammar rule, which records the members of an object, and conditions on it."""

from __future__ import annotations

from typing import Final

from draftline.structured.json_schema.shapes.objects import ObjectShape

BITS: Final = 64
COUNTER_BITS: Final = 16
"""The most bits of a counter."""


def have_bits(shape: ObjectShape) -> bool:
    """Whether the parameter has room for all members of an object and for a counter."""
    return len(shape.named) + len(shape.some) + COUNTER_BITS <= BITS


class Layout:
    """The meaning of each bit of an object's parameter.

    In order: required properties; the conditions of ``ObjectShape.some``; a flag for unnamed members; a counter of
    members that are not required; optional properties, while bits are left. An optional property without a bit may be
    written twice, which leaves the object valid. Required members are not counted, so there is always room for them.

    Attributes:
        bit_of: the bit of each property.
        some_bit: the first bit of the conditions of ``some``.
        other_bit: set by an unnamed member; None if it is not needed.
        counter: the range of bits of the counter; empty if there is none.
        one: the parameter with the counter at 1.
        room: the condition under which a member that is not required may follow.
        done: the condition under which the object may end.
    """

    def __init__(self, shape: ObjectShape) -> None:
        required = [name for name, _ in shape.possible if name in shape.required]
        optional = [name for name, _ in shape.possible if name not in shape.required]
        self.bit_of = {name: bit for bit, name in enumerate(required)}
        self.some_bit = len(required)
        used = self.some_bit + len(shape.some)
        self.other_bit: int | None = None
        self.counter = ""
        self.one = 0
        self.room = ""
        conditions = [f"is_ones([0:{used}])"] if used else []
        missing = shape.min_members - len(required)
        if missing == 1 and shape.others and not shape.some:
            self.other_bit = used
            used += 1
        further = None if shape.max_members is None else shape.max_members - len(required)
        if shape.others and (further is not None or missing > 1):
            width = max(missing, further or 0).bit_length()
            self.counter = f"[{used}:{used + width}]"
            self.one = 1 << used
            self.room = "" if further is None else f"lt({self.counter}, {further})"
            used += width
        start = used
        kept = optional[: BITS - used]
        self.bit_of.update((name, start + index) for index, name in enumerate(kept))
        if further is not None and not shape.others:
            self.room = _count("lt", start, len(kept), further)
        if missing > 1 and shape.others:
            conditions.append(f"ge({self.counter}, {missing})")  # it stays at its largest value
        elif shape.min_members and not shape.some:  # a member that meets ``some`` is the one that is missing
            enough = _count("ge", start, len(kept), missing)
            if self.other_bit is not None:
                # One unnamed member is enough: besides the required members, at most one is missing.
                enough = f"or({enough}, bit_set({self.other_bit}))" if kept else f"bit_set({self.other_bit})"
            conditions.append(enough)
        self.done = both_of(*conditions)


def _count(comparison: str, start: int, width: int, bound: int) -> str:
    return f"bit_count_{comparison}([{start}:{start + width}], {bound})"


def both_of(*conditions: str) -> str:
    """The conjunction of all conditions that are not empty."""
    given = [condition for condition in conditions if condition]
    if not given:
        return ""
    joined = given[0]
    for condition in given[1:]:
        joined = f"and({joined}, {condition})"
    return joined


def when(condition: str) -> str:
    """The suffix that makes an alternative depend on a condition; empty for an empty condition."""
    return f" %if {condition}" if condition else ""
