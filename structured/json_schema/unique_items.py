"""Arrays whose items have to differ: which arrays of a document these are.

Grammars cannot compare items, so a matcher on the host does (`structured/unique/`). It has to know from the path and the
type of an item alone whether the item has to differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from draftline.structured.json_schema.enumerated import unique_values
from draftline.structured.json_schema.graph import Graph, items, items_can_differ, where
from draftline.structured.json_schema.normalise import Normaliser
from draftline.structured.json_schema.shapes.arrays import ArrayShape
from draftline.structured.json_schema.shapes.demands import NEVER, Demands
from draftline.structured.json_schema.shapes.objects import Members, ObjectShape
from draftline.structured.json_schema.shapes.strings import ALL_STRINGS, StringSet, meet, string_tree, subtract
from draftline.structured.json_schema.shapes.union import NOTHING, Shapes
from draftline.structured.json_schema.variety import ENDLESS, Variety, never_runs_out
from draftline.structured.regular import dfa
from draftline.structured.unique.paths import NOWHERE, TEXT, VARIED, PathState, UniquePaths

MAX_STATES: Final = 2_000

_MAX_KINDS: Final = 6
"""The most sets of names of unnamed members that are told apart in one place."""

_REASON: Final = "an array of this type and place may not have unique items, since an alternative asks for equal ones"


def unique_paths(graph: Graph, normaliser: Normaliser) -> UniquePaths | None:
    """Where the items of arrays have to differ; None if nowhere, or if a violation had to be reported."""
    places = _Places(graph, normaliser)
    arrays = [shape for shapes in graph.nodes.values() for shape in shapes.arrays if places.compares(shape)]
    counting = [value for value, shapes in graph.nodes.items() if any(map(_counts_names, shapes.objects))]
    if not arrays and not counting:
        return None
    everything = sorted({pointer for shape in arrays for pointer in shape.unique})
    states: list[PathState] = []
    for place in places.found:
        if len(places.found) > MAX_STATES:
            for pointer in everything:
                normaliser.report(pointer, "uniqueItems", f"its arrays are in more than {MAX_STATES} kinds of places")
            return None
        states.append(places.state(place))
    pointers = [normaliser.place(pointer, "uniqueItems") for pointer in everything]
    pointers.extend(normaliser.place(where(value, "minProperties"), "minProperties") for value in counting)
    compares = any(state.unique or state.distinct for state in states)
    return UniquePaths(tuple(states), tuple(pointers)) if compares else None


class _Places:
    """The places of a document: sets of values that may be in one place, whichever path leads there.

    Attributes:
        found: the places so far; the number of each is its index. The first one is the whole document's.
    """

    def __init__(self, graph: Graph, normaliser: Normaliser) -> None:
        self._nodes = graph.nodes
        self._normaliser = normaliser
        self._variety = Variety(lambda value: graph.nodes.get(value, NOTHING))
        self.found = [frozenset([graph.root])]
        self._numbers = {self.found[0]: 0}

    def compares(self, shape: ArrayShape) -> bool:
        """Whether the host compares the items of an array: the grammar does so with short lists."""
        return bool(shape.unique) and unique_values(shape, self._nodes.__getitem__) is None

    def state(self, place: Iterable[Demands]) -> PathState:
        """What is to be known in a place. Places inside it are found, if they are new."""
        arrays = [shape for value in place for shape in self._nodes[value].arrays]
        objects = [shape for value in place for shape in self._nodes[value].objects]
        unique = self._unique(arrays)
        names = dict.fromkeys(name for shape in objects for name, _ in shape.named)
        unnamed = [members for shape in objects for members in _unnamed(shape)]
        kinds, combinations = _kinds(unnamed)
        by_kind: dict[tuple[bool, ...], int] = {}
        for inside in combinations:
            having = {kind for kind, has in zip(kinds, inside, strict=True) if has}
            by_kind[inside] = self._number(members.value for members in unnamed if members.names in having)
        return PathState(
            unique=unique,
            items=self._number(item for shape in arrays for item in items(shape)),
            members={
                name: self._number(value for shape in objects for value in _member(shape, name)) for name in names
            },
            others=NOWHERE if kinds else self._number(members.value for members in unnamed),
            varied=self._never_ends(place),
            varied_members=frozenset(
                name for name in names if all(_is_varied(shape, name, self._variety) for shape in objects)
            ),
            text=_all_strings(self._nodes[value] for value in place),
            distinct=any(map(_counts_names, objects)),
            unnamed=any(shape.others for shape in objects),
            limited=any(not never_runs_out(members.names) for shape in objects for members in shape.others),
            open=bool(objects) and all(map(_is_open, objects)),
            kinds=tuple(dfa.build(string_tree(kind)) for kind in kinds),
            by_kind=by_kind,
        )

    def _unique(self, arrays: list[ArrayShape]) -> frozenset[str]:
        """The types of the items that have to differ in one of the arrays of a place, and so in all of them.

        Arrays that may have equal items of these types are left out, if others remain.
        """
        asking = list(filter(self.compares, arrays))
        unique = self._types(asking)
        loose = [
            one for one in arrays if not one.unique and one.max_items not in (0, 1) and unique & self._types([one])
        ]
        if all(items_can_differ(one, self._variety) for one in loose):
            return unique
        for pointer in sorted({pointer for one in asking for pointer in one.unique}):
            self._normaliser.report(pointer, "uniqueItems", _REASON)
        return frozenset()

    def _types(self, arrays: Iterable[ArrayShape]) -> frozenset[str]:
        """The types of the items of arrays."""
        found = (self._nodes.get(item, NOTHING) for shape in arrays for item in items(shape))
        return frozenset(name for one in found for name in one.types)

    def _never_ends(self, values: Iterable[Demands]) -> bool:
        return all(self._variety.of(value) == ENDLESS for value in values)

    def _number(self, values: Iterable[Demands]) -> int:
        """The state of the place of some values."""
        place = frozenset(value for value in values if value in self._nodes)
        text = _all_strings(self._nodes[value] for value in place)
        if all(_is_scalar(self._nodes[value]) for value in place) and (self._never_ends(place) or not text):
            return TEXT if text else VARIED if place and self._never_ends(place) else NOWHERE
        if place not in self._numbers:
            self._numbers[place] = len(self.found)
            self.found.append(place)
        return self._numbers[place]


def _counts_names(shape: ObjectShape) -> bool:
    """Whether equal names of unnamed members would be counted twice."""
    return bool(shape.others) and shape.min_members > len(shape.required) + 1


def _is_open(shape: ObjectShape) -> bool:
    """Whether another member may always come."""
    return shape.max_members is None and any(never_runs_out(members.names) for members in shape.others)


def _member(shape: ObjectShape, name: str) -> Iterable[Demands]:
    value = dict(shape.named).get(name)
    if value is None:
        return [members.value for members in _unnamed(shape) if _may_have(members.names, name)]
    return () if value == NEVER else (value,)


def _may_have(names: StringSet, name: str) -> bool:
    try:
        return names.contains(name)
    except dfa.TooComplexError:
        return True


def _unnamed(shape: ObjectShape) -> tuple[Members, ...]:
    return (*shape.others, *shape.some)


def _kinds(unnamed: list[Members]) -> tuple[list[StringSet], list[tuple[bool, ...]]]:
    """The sets of names that tell unnamed members apart, and which of them have a name: each combination that a name has.

    There are none if there is one set, or if they are too complex.
    """
    kinds = list(dict.fromkeys(members.names for members in unnamed))
    if not 1 < len(kinds) <= _MAX_KINDS:
        return [], []
    try:
        regions: list[tuple[StringSet, tuple[bool, ...]]] = [(ALL_STRINGS, ())]
        for names in kinds:
            dfa.build(string_tree(names))
            inside = [(meet(region, names), (*found, True)) for region, found in regions]
            outside = [(part, (*found, False)) for region, found in regions for part in subtract(region, names)]
            regions = [(region, found) for region, found in (*inside, *outside) if not region.is_empty()]
    except dfa.TooComplexError:
        return [], []
    return kinds, list(dict.fromkeys(found for _, found in regions))


def _is_varied(shape: ObjectShape, name: str, variety: Variety) -> bool:
    return name in shape.required and variety.of(dict(shape.named)[name]) == ENDLESS


def _all_strings(places: Iterable[Shapes]) -> bool:
    """Whether every string may be in a place, whichever of its shapes a string has."""
    return {shapes.strings for shapes in places} - {()} == {(ALL_STRINGS,)}


def _is_scalar(shapes: Shapes) -> bool:
    return not shapes.arrays and not shapes.objects
