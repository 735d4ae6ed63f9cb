"""``unique_members``: objects of JSON whose members have different names.

Parsers take the last of several members with one name, and the others have no effect. A hook of ``json.loads`` refuses them.
"""

from __future__ import annotations

import json
from typing import TypeVar

Value = TypeVar("Value")

_SHOWN = 64
"""Characters of a name that an error quotes."""


class RepeatedMemberError(ValueError):
    """An object has two members with one name. The message is what is said of the whole JSON."""


def unique_members(pairs: list[tuple[str, Value]]) -> dict[str, Value]:
    """An object by its members, as ``object_pairs_hook`` of ``json.loads``.

    Raises:
        RepeatedMemberError: two have one name.
    """
    members = dict(pairs)
    if len(members) < len(pairs):
        seen = set[str]()
        for name, _ in pairs:
            if name in seen:
                raise RepeatedMemberError(f"has an object with two members named {name[:_SHOWN]!r}")
            seen.add(name)
    return members


def check_members(text: str | bytes) -> None:
    """Check the objects of a valid JSON text, which another parser reads.

    Raises:
        RepeatedMemberError: two members of one have one name.
    """
    # Numbers are not read: they may have any number of digits.
    json.loads(text, object_pairs_hook=unique_members, parse_int=len, parse_float=len)
