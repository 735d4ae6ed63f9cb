"""Where the fields of an object are written, and where pydantic finds them: names, aliases and alias paths."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from draftline.structured.types.core.collections import exactly
from draftline.structured.types.core.place import CoreSchema, Fragment

Alias = tuple[str | int, ...]
"""Where a field's value stands: names of members, and indices of items."""


def aliases_of(name: str, one: CoreSchema, config: Mapping[str, Any]) -> list[Alias]:
    """The paths by which pydantic finds a field, in its order."""
    by_alias = config.get("validate_by_alias")
    by_name = config.get("validate_by_name") or config.get("populate_by_name")
    alias: Any = one.get("validation_alias")
    if alias is None:
        return [(name,)]
    found: list[Alias] = []
    if by_alias is not False:
        if isinstance(alias, str):
            found.append((alias,))
        elif alias and isinstance(alias[0], list):
            found.extend(tuple(path) for path in alias)
        else:
            found.append(tuple(alias))
    if by_name:
        found.append((name,))
    return found


@dataclass(slots=True)
class Branch:
    """Members of an object that aliases lead through."""

    fields: dict[str | int, Fragment] = field(default_factory=dict)
    branches: dict[str | int, Branch] = field(default_factory=dict)
    required: set[str | int] = field(default_factory=set)

    def add(self, path: Alias, fragment: Fragment, required: bool) -> bool:
        """Put a field at a path; False if another one is in the way."""
        first, rest = path[0], path[1:]
        if required:
            self.required.add(first)
        if not rest:
            free = first not in self.fields and first not in self.branches
            self.fields[first] = fragment
            return free
        return first not in self.fields and self.branches.setdefault(first, Branch()).add(rest, fragment, required)

    def fragment(self, least: int = 0) -> Fragment | None:
        """The schema of objects with a least number of members, 0 or 1; None if names and indices are mixed, or an index is negative."""
        members: dict[str | int, Fragment | None] = dict(self.fields)
        # An object in which no field is found would be an extra member, which the type may forbid.
        members |= {name: branch.fragment(least=1) for name, branch in self.branches.items()}
        if any(member is None for member in members.values()):
            return None
        if all(isinstance(name, str) for name in members):
            required = [name for name in members if name in self.required]
            closed: Fragment = {"type": "object", "properties": members, "additionalProperties": False}
            if required:
                return {**closed, "required": required}
            return {**closed, "minProperties": least} if least else closed
        if not all(isinstance(name, int) and name >= 0 for name in members):
            return None
        length = max(int(name) for name in members) + 1
        return exactly([members.get(index) or {"type": "null"} for index in range(length)])


@dataclass(slots=True)
class Member:
    """A field, and where it is written.

    Attributes:
        aliases: the paths by which pydantic finds it, in its order.
        fragment: its JSON Schema.
        required: whether it is always written.
    """

    name: str
    aliases: list[Alias]
    fragment: Fragment
    required: bool

    @property
    def written(self) -> Alias:
        """The path at which it is written."""
        return min(self.aliases, key=len)

    def overlaps(self, other: Member) -> bool:
        """Whether one of both is written at the place of the other or within it."""
        return all(mine == others for mine, others in zip(self.written, other.written, strict=False))

    def avoid_misreading(self, whole: Fragment, definitions: Mapping[str, Fragment], ignores_others: bool) -> bool:
        """Write the field always, and by an alias that pydantic prefers, if another one can find a value not its own.

        Args:
            whole: the object with all fields.
            definitions: what its references lead to.
            ignores_others: whether it may have members that no field reads.
        """
        written = self.written
        behind = False
        for index, alias in enumerate(self.aliases):
            if alias == written:
                if self.required:
                    return False
                behind = True
            elif not all((behind or ignores_others) and self._takes(one) for one in _found(alias, whole, definitions)):
                # pydantic reads the first alias that it finds, and the first of all has none before it.
                self.aliases = self.aliases[: max(index, 1)]
                self.required = True
                return True
        return False

    def _takes(self, fragment: Fragment) -> bool:
        """Whether the field takes all values of a schema: that of a field which is written the same, say."""
        own = [self.fragment, *(self.fragment["anyOf"] if self.fragment.keys() == {"anyOf"} else [])]
        # As texts, in which 1 is not true.
        return json.dumps(fragment) in map(json.dumps, own)


def _found(path: Alias, fragment: Any, definitions: Mapping[str, Fragment]) -> Iterator[Fragment]:
    """The schemas of what pydantic may find at a path in the values of a schema. ``{}`` is any value."""
    if fragment is False:
        return
    if not path:
        yield fragment
    elif not isinstance(fragment, dict) or "patternProperties" in fragment:
        yield {}
    elif "$ref" in fragment:
        # A definition that is not read to its end is {} as yet.
        yield from _found(path, definitions.get(fragment["$ref"].removeprefix("#/$defs/"), {}), definitions)
    elif "anyOf" in fragment:
        for choice in fragment["anyOf"]:
            yield from _found(path, choice, definitions)
    elif any(isinstance(value, list | dict) for value in fragment.get("enum", [{}])):
        step, rest = path[0], path[1:]
        types = fragment.get("type", ["array", "object"])
        inner: list[Any] = []
        if isinstance(step, str) and "object" in types:
            inner = [fragment.get("properties", {}).get(step, fragment.get("additionalProperties", {}))]
        elif isinstance(step, int) and "array" in types:
            items = [*fragment.get("prefixItems", []), fragment.get("items", {})]
            inner = items if step < 0 else [items[min(step, len(items) - 1)]]
        for one in inner:
            yield from _found(rest, one, definitions)
