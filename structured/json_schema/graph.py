"""The normalised language of a schema as a graph: all reachable kinds of values, each with its shapes.

Shapes without a finite value are pruned, so no path through the graph is a dead end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from draftline.structured.errors import InvalidConstraintError
from draftline.structured.json_schema.closing import closed
from draftline.structured.json_schema.counting import all_kinds, counter, is_small
from draftline.structured.json_schema.decimals import number_text
from draftline.structured.json_schema.enumerated import unique_values
from draftline.structured.json_schema.limits import SchemaLimits
from draftline.structured.json_schema.member_bits import BITS, COUNTER_BITS, have_bits
from draftline.structured.json_schema.multiples import InexpressibleNumbersError, native_schemas
from draftline.structured.json_schema.normalise import Normaliser
from draftline.structured.json_schema.shapes.arrays import ArrayShape, settle_array
from draftline.structured.json_schema.shapes.demands import NEVER, Demand, Demands
from draftline.structured.json_schema.shapes.limits import MAX_CASES
from draftline.structured.json_schema.shapes.member_counts import MemberCounts
from draftline.structured.json_schema.shapes.numbers import NumberSet
from draftline.structured.json_schema.shapes.objects import (
    ANY_OBJECT,
    Members,
    ObjectShape,
    object_within,
    settle_object,
)
from draftline.structured.json_schema.shapes.union import NOTHING, Shapes, widest
from draftline.structured.json_schema.variety import Variety
from draftline.structured.regular.syntax import NEVER as NO_TEXT


@dataclass(frozen=True, slots=True)
class Graph:
    """A language as a grammar without concrete syntax.

    Attributes:
        root: the value of the whole document.
        nodes: the shapes of every reachable value, in the order of discovery.
        closed: JSON pointers of the schemas whose objects were closed.
    """

    root: Demands
    nodes: dict[Demands, Shapes]
    closed: tuple[str, ...] = ()


def build_graph(normaliser: Normaliser, root: Demands, limits: SchemaLimits) -> Graph:
    """Expand everything reachable from ``root``.

    Raises:
        InvalidConstraintError: over a limit, or no value matches.
    """
    closing: dict[str, None] = {}
    nodes: dict[Demands, Shapes] = {}
    variety = Variety(normaliser.expand)
    waiting = [root]
    count = 0
    for value in waiting:
        if value in nodes:
            continue
        shapes = _exact(normaliser, variety, value, normaliser.expand(value))
        if normaliser.closes_objects and (without := closed(shapes)) != shapes:
            shapes = without
            closing[where(value, "properties")] = None
        nodes[value] = shapes
        count += _size(shapes)
        if count > limits.shapes:
            largest = max(nodes, key=lambda one: _size(nodes[one]))
            raise InvalidConstraintError(
                f"the schema has more than {limits.shapes} shapes when normalised,"
                f" {_size(nodes[largest])} of them at #{where(largest, '')}"
            )
        waiting.extend(child for child in children(shapes) if child not in nodes)
    fruitful = _fruitful(nodes)
    if root not in fruitful:
        # Of the keywords that JSON Schema ignores, this one would allow more values.
        ignored = [f"; {one}" for one in normaliser.annotations.values() if one.keyword == "nullable"]
        pointer = where(_without_values(root, nodes, fruitful), "")
        place = f", since none matches #{pointer}" if pointer else ""
        raise InvalidConstraintError(f"no value matches the schema{place}" + "".join(ignored[:1]))
    pruned: dict[Demands, Shapes] = {}
    waiting = [root]
    for value in waiting:
        if value not in pruned:
            shapes = pruned[value] = _prune(nodes[value], fruitful)
            waiting.extend(child for child in children(shapes) if child in fruitful)
    return Graph(root, pruned, tuple(closing))


def _without_values(value: Demands, nodes: dict[Demands, Shapes], fruitful: set[Demands]) -> Demands:
    """The innermost schema that leaves a value none: where it has one shape, a member or an item that this shape needs."""
    seen: set[Demands] = set()
    while value not in seen:
        seen.add(value)
        objects, arrays = nodes[value].objects, nodes[value].arrays
        if len(objects) + len(arrays) != 1:
            return value
        needed = [member for shape in objects for name, member in shape.named if name in shape.required]
        needed.extend(item for shape in arrays for item in (*shape.prefix, shape.rest)[: shape.min_items])
        value = next((one for one in needed if one not in fruitful and one in nodes), value)
    return value


def _size(shapes: Shapes) -> int:
    """The shapes of a value, and the members of its objects."""
    cases = len(shapes.numbers) + len(shapes.strings) + len(shapes.arrays) + len(shapes.objects)
    return 1 + cases + sum(len(shape.named) for shape in shapes.objects)


def children(shapes: Shapes) -> Iterator[Demands]:
    """The values inside, in order of appearance, without NEVER."""
    for array in shapes.arrays:
        yield from (value for value in items(array) if value != NEVER)
    for shape in shapes.objects:
        yield from (value for _, value in shape.possible)
        yield from (members.value for members in (*shape.others, *shape.some))


def items(shape: ArrayShape) -> Iterator[Demands]:
    """The items of an array, the kinds of counted ones too."""
    yield from shape.prefix
    if shape.max_items is None or shape.max_items > len(shape.prefix):
        yield shape.rest
    if shape.contains:
        yield from all_kinds(shape)


def _exact(normaliser: Normaliser, variety: Variety, value: Demands, shapes: Shapes) -> Shapes:
    """The same shapes without conditions that have no exact form. Those are reported."""
    if not (shapes.numbers or shapes.arrays or shapes.objects):
        return shapes
    # No parser can wait for an item to come again. Where other values are left, arrays that must have one are left out.
    single = tuple(shape for shape in shapes.arrays if not shape.repeating)
    if replace(shapes, arrays=single) != NOTHING:
        shapes = replace(shapes, arrays=single)
    return replace(
        shapes,
        numbers=tuple(
            written for one in shapes.numbers if (written := _exact_multiples(normaliser, value, one)) is not None
        ),
        arrays=tuple(
            exact
            for one in shapes.arrays
            if (exact := _exact_uniqueness(normaliser, variety, _exact_counts(normaliser, one))) is not None
        ),
        objects=tuple(_exact_members(normaliser, value, one) for one in _few_cases(normaliser, value, shapes.objects)),
    )


def _few_cases(normaliser: Normaliser, value: Demands, objects: tuple[ObjectShape, ...]) -> tuple[ObjectShape, ...]:
    if len(objects) <= MAX_CASES:
        return objects
    objects = widest(objects, object_within)
    if len(objects) <= MAX_CASES:
        return objects
    keyword = next((one for one in ("allOf", "oneOf", "anyOf") if any(_says(demand, one) for demand in value)), "")
    normaliser.report(where(value, keyword), keyword, f"objects have more than {MAX_CASES} cases here")
    return (ANY_OBJECT,)


def _exact_multiples(normaliser: Normaliser, value: Demands, numbers: NumberSet) -> NumberSet | None:
    """The same numbers without conditions that have no exact form; None if no number has a text."""
    try:
        if number_text(numbers) == NO_TEXT:
            return None
    except InexpressibleNumbersError as error:
        if native_schemas(numbers):
            return numbers
        normaliser.report(where(value, "multipleOf"), "multipleOf", str(error))
        return replace(numbers, step=None, not_steps=frozenset())
    return numbers


def where(value: Demands, keyword: str) -> str:
    """The pointer of a schema with this keyword, or else of a schema that contains it."""
    pointers = sorted(demand.location.pointer for demand in value)
    saying = [demand.location.pointer for demand in value if _says(demand, keyword)]
    return min(saying, default=pointers[0] if pointers else "")


def _says(demand: Demand, keyword: str) -> bool:
    """Whether the schema that must or must not hold has a keyword."""
    return isinstance(demand.location.schema, dict) and keyword in demand.location.schema


def _exact_members(normaliser: Normaliser, value: Demands, shape: ObjectShape) -> ObjectShape:
    """Drop counts that need unnamed members of few names, which could be equal, or too many rules."""
    counted = shape.min_members > 0 or shape.max_members is not None
    if shape.others and shape.min_members > len(shape.required) + 1 and not has_free_names(shape):
        reason = "different names cannot be enforced for unnamed members whose names are restricted"
        normaliser.report(where(value, "minProperties"), "minProperties", reason)
        shape = replace(shape, min_members=0)
    if shape.max_members is not None and shape.max_members.bit_length() > COUNTER_BITS:
        normaliser.report(where(value, "maxProperties"), "maxProperties", f"it is beyond {2**COUNTER_BITS - 1}")
        shape = replace(shape, max_members=None)
    if shape.some and shape.max_members is not None:
        reason = "it cannot be combined with unnamed members that another keyword requires"
        normaliser.report(where(value, "maxProperties"), "maxProperties", reason)
        shape = replace(shape, max_members=None)
    if (counted or shape.some) and not have_bits(shape) and (shape.some or not MemberCounts(shape).are_few):
        keyword = "minProperties" if shape.min_members else "maxProperties"
        reason = f"more than {BITS - COUNTER_BITS} named properties allow only small counts"
        normaliser.report(where(value, keyword), keyword, reason)
        shape = replace(shape, min_members=0, max_members=None, some=())
    return shape


def has_free_names(shape: ObjectShape) -> bool:
    """Whether unnamed members may have every name of some length and more, so that names never run out."""
    return all(
        one.names.only is None and one.names.max_length is None and not (one.names.patterns or one.names.not_patterns)
        for one in shape.others
    )


def _exact_counts(normaliser: Normaliser, shape: ArrayShape) -> ArrayShape:
    if not shape.contains or is_small(shape):
        return shape
    for one in shape.contains:
        (demand,) = one.value
        normaliser.report(demand.location.pointer.rpartition("/")[0], "contains", "its counts are too large")
    return replace(shape, contains=())


def _exact_uniqueness(normaliser: Normaliser, variety: Variety, shape: ArrayShape) -> ArrayShape | None:
    """The same arrays; None if there are fewer values than unique items."""
    for pointer in sorted(shape.repeating):
        reason = "arrays whose items repeat have no exact form, and not, oneOf or if leaves no other values"
        normaliser.report(pointer, "uniqueItems", reason)
    shape = replace(shape, repeating=frozenset())
    if not shape.unique:
        return shape
    if shape.max_items in (0, 1):
        return replace(shape, unique=frozenset())
    values = unique_values(shape, normaliser.expand)
    if values is not None:
        return shape if len(values) >= shape.min_items else None
    if items_can_differ(shape, variety):
        return shape
    for pointer in sorted(shape.unique):
        reason = "so many items cannot be unique, or which ones are left depends on the items before"
        normaliser.report(pointer, "uniqueItems", reason)
    return replace(shape, unique=frozenset())


def items_can_differ(shape: ArrayShape, variety: Variety) -> bool:
    """Whether the host can compare the items: whatever the first ones are, there is another value for each further one."""
    needed = [(variety.of(item), index + 1) for index, item in enumerate(shape.prefix[: shape.min_items])]
    if shape.min_items > len(shape.prefix):
        needed.append((variety.of(shape.rest), shape.min_items))
    # If one of the counted items is wanted, none of them is there yet.
    simple = all(one.high is None and one.low <= 1 and one.start == 0 for one in shape.contains)
    return simple and all(count >= least for count, least in needed)


def _fruitful(nodes: dict[Demands, Shapes]) -> set[Demands]:
    """The demands that at least one value meets: the least set that is closed under construction of values."""
    users: dict[Demands, list[Demands]] = {value: [] for value in nodes}
    for value, shapes in nodes.items():
        for child in set(children(shapes)):
            users[child].append(value)
    fruitful: set[Demands] = set()
    waiting = list(nodes)
    while waiting:
        value = waiting.pop()
        if value not in fruitful and _has_value(nodes[value], fruitful):
            fruitful.add(value)
            waiting.extend(user for user in users[value] if user not in fruitful)
    return fruitful


def _has_value(shapes: Shapes, fruitful: set[Demands]) -> bool:
    if shapes.null or shapes.booleans or shapes.numbers or shapes.strings:
        return True
    return any(_has_array(shape, fruitful) for shape in shapes.arrays) or any(
        _has_object(shape, fruitful) for shape in shapes.objects
    )


def _has_array(shape: ArrayShape, fruitful: set[Demands]) -> bool:
    pruned = _prune_array(shape, fruitful)
    if pruned is None:
        return False
    return not pruned.contains or counter(pruned, lambda value: value in fruitful) is not None


def _has_object(shape: ObjectShape, fruitful: set[Demands]) -> bool:
    return next(_prune_object(shape, fruitful), None) is not None


def _prune(shapes: Shapes, fruitful: set[Demands]) -> Shapes:
    if not (shapes.arrays or shapes.objects):
        return shapes
    arrays = [_prune_array(shape, fruitful) for shape in shapes.arrays if _has_array(shape, fruitful)]
    objects = [pruned for shape in shapes.objects for pruned in _prune_object(shape, fruitful)]
    return replace(
        shapes,
        arrays=tuple(dict.fromkeys(shape for shape in arrays if shape is not None)),
        objects=tuple(dict.fromkeys(objects)),
    )


def _prune_array(shape: ArrayShape, fruitful: set[Demands]) -> ArrayShape | None:
    def kept(value: Demands) -> Demands:
        return value if value in fruitful else NEVER

    return settle_array(replace(shape, prefix=tuple(kept(item) for item in shape.prefix), rest=kept(shape.rest)))


def _prune_object(shape: ObjectShape, fruitful: set[Demands]) -> Iterator[ObjectShape]:
    # Asked again for each member that turns out to have values: most answers must take no time.
    if any(value not in fruitful and name in shape.required for name, value in shape.named):
        return
    named = tuple((name, value if value in fruitful else NEVER) for name, value in shape.named)
    others = tuple(members for members in shape.others if members.value in fruitful)
    if any(members.value not in fruitful for members in shape.some):
        return
    for pruned in settle_object(replace(shape, named=named, others=others, some=()), ()):
        yield replace(pruned, some=tuple(dict.fromkeys(Members(one.names, one.value) for one in shape.some)))
