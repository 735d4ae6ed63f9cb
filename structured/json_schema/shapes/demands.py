"""The value of a member or an item: the schemas that it must match, and those that it must not.

Demands are expanded to shapes lazily, so recursion costs nothing. The intersection of two values is the union of their
demands. Equal demands are one node of the language.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from draftline.structured.json_schema.document import Dialect, Location


@dataclass(frozen=True, slots=True)
class Demand:
    """A schema that a value must match, or must not match if ``holds`` is False."""

    location: Location
    holds: bool = True

    @property
    def order(self) -> tuple[str, bool, tuple[tuple[str, str], ...]]:
        """The sort key of demands, where their order is visible."""
        return self.location.pointer, self.holds, self.location.scope


Demands = frozenset[Demand]
"""The demands on one value. All must be met; the empty set is met by any value."""

ANY: Final[Demands] = frozenset()
NEVER: Final[Demands] = frozenset([Demand(Location("false", False, "", Dialect.DRAFT2020))])


def both(one: Demands, other: Demands) -> Demands:
    """The demands that both sets make; NEVER if they contain it, or if a schema must hold and must not."""
    united = one | other
    if NEVER.issubset(united) or any(not demand.holds and Demand(demand.location) in united for demand in united):
        return NEVER
    return united
