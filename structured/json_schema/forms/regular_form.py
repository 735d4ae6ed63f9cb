"""A language as one regular expression, if it is regular and small.

Values are written in place: a schema that recurses, or leaves the values of members open, has no such form. Members in
any order need every permutation, so only a few are allowed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from draftline.structured.json_schema.closing import OPEN
from draftline.structured.json_schema.decimals import number_text
from draftline.structured.json_schema.forms.text import string_text
from draftline.structured.json_schema.forms.whitespace import Separators, separators
from draftline.structured.json_schema.graph import Graph
from draftline.structured.json_schema.multiples import InexpressibleNumbersError
from draftline.structured.json_schema.shapes.arrays import ArrayShape
from draftline.structured.json_schema.shapes.demands import NEVER, Demands
from draftline.structured.json_schema.shapes.numbers import NumberSet
from draftline.structured.json_schema.shapes.objects import ObjectShape
from draftline.structured.json_schema.shapes.strings import StringSet, string_tree
from draftline.structured.json_schema.shapes.union import Shapes
from draftline.structured.json_schema.spelling import PropertyOrder, Whitespace
from draftline.structured.regular.dfa import TooComplexError
from draftline.structured.regular.syntax import (
    EMPTY,
    Node,
    alt,
    literal,
    optional,
    repeat,
    seq,
)

MAX_POSITIONS: Final = 50_000
"""The most characters of the expression with counted repetitions written out: its automaton grows with them."""

_MAX_PERMUTED: Final = 6

_TOO_MANY: Final = f"its regular expression would have more than {MAX_POSITIONS} characters"


class NotRegularError(ValueError):
    """The language has no regular expression within the budgets.

    Attributes:
        reason: the reason.
        pointer: the JSON pointer of the schema that is not regular; None while it is unknown.
    """

    def __init__(self, reason: str, pointer: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.pointer = pointer


def regular_form(graph: Graph, whitespace: Whitespace, order: PropertyOrder) -> Node:
    """The syntax tree of the texts of a graph.

    Raises:
        NotRegularError: it recurses, or would be too large.
    """
    writer = _RegexWriter(graph, whitespace, order)
    tree = writer.value(graph.root, 1)
    if tree.positions > MAX_POSITIONS:
        raise NotRegularError(_TOO_MANY, "")
    return tree


class _RegexWriter:
    def __init__(self, graph: Graph, whitespace: Whitespace, order: PropertyOrder) -> None:
        self._graph = graph
        self._whitespace: Whitespace = whitespace
        self._order: PropertyOrder = order
        self._written: dict[tuple[Demands, int], Node] = {}
        self._open: set[Demands] = set()

    def value(self, value: Demands, depth: int) -> Node:
        known = self._written.get((value, depth))
        if known is not None:
            return known
        try:
            tree = self._tree(value, depth)
        except NotRegularError as error:
            # Report the innermost schema, and the first of several for one value. A value without demands has no schema.
            if error.pointer is not None or not value or value == OPEN:
                raise
            raise NotRegularError(error.reason, min(demand.location.pointer for demand in value)) from None
        self._written[value, depth] = tree
        return tree

    def _tree(self, value: Demands, depth: int) -> Node:
        if value in self._open:
            raise NotRegularError(
                "it recurses" if value else "members or items may be any value, which can nest without bound"
            )
        self._open.add(value)
        shapes = self._graph.nodes[value]
        options = list(self._scalars(shapes))
        spaces = separators(self._whitespace, depth)
        options.extend(self._array(shape, depth, spaces) for shape in shapes.arrays)
        options.extend(self._object(shape, depth, spaces) for shape in shapes.objects)
        tree = alt(options)
        if tree.positions > MAX_POSITIONS:
            raise NotRegularError(_TOO_MANY)
        self._open.discard(value)
        return tree

    def _scalars(self, shapes: Shapes) -> Iterator[Node]:
        if shapes.null:
            yield literal("null")
        for value in sorted(shapes.booleans):
            yield literal("true" if value else "false")
        for numbers in shapes.numbers:
            yield self._number(numbers)
        for strings in shapes.strings:
            yield self._string(strings)

    def _number(self, numbers: NumberSet) -> Node:
        try:
            return number_text(numbers)
        except InexpressibleNumbersError as error:
            raise NotRegularError(str(error)) from None

    def _string(self, strings: StringSet) -> Node:
        try:
            return string_text(string_tree(strings))
        except TooComplexError as error:
            raise NotRegularError(str(error)) from None

    def _array(self, shape: ArrayShape, depth: int, spaces: Separators) -> Node:
        if shape.unique or shape.contains:
            raise NotRegularError(
                "it requires unique items, or counts items, so that what may follow depends on the items so far"
            )
        empty = seq(literal("["), spaces.opened, literal("]"))

        def full(items: Node) -> Node:
            return seq(literal("["), spaces.opened, items, spaces.closing, literal("]"))

        if shape.max_items == 0:
            return empty
        maximum = None if shape.max_items is None else shape.max_items - len(shape.prefix)
        minimum = shape.min_items - len(shape.prefix)
        tail: Node = EMPTY
        if shape.rest != NEVER and (maximum is None or maximum > 0):
            rest = self.value(shape.rest, depth + 1)
            if shape.prefix:
                tail = repeat(seq(spaces.comma, rest), max(minimum, 0), maximum)
            else:
                more = repeat(seq(spaces.comma, rest), max(minimum, 1) - 1, None if maximum is None else maximum - 1)
                tail = seq(rest, more)
        for index in range(len(shape.prefix) - 1, -1, -1):
            item = self.value(shape.prefix[index], depth + 1)
            tail = seq(spaces.comma if index else EMPTY, item, tail)
            if index and shape.min_items <= index:
                tail = optional(tail)
        return alt([full(tail), empty]) if shape.min_items == 0 else full(tail)

    def _object(self, shape: ObjectShape, depth: int, spaces: Separators) -> Node:
        if shape.some:
            raise NotRegularError("it requires an unnamed member")

        def member(names: Node, value: Demands) -> Node:
            return seq(string_text(names), spaces.colon, self.value(value, depth + 1))

        named = shape.possible
        counted = bool(shape.min_members) or (shape.max_members is not None and bool(named))
        ordered = self._order == "schema" and not counted
        if not ordered and len(named) > _MAX_PERMUTED:
            raise NotRegularError(f"more than {_MAX_PERMUTED} properties in any order")
        for members in shape.others:
            self.value(members.value, depth + 1)
        try:
            others = [member(string_tree(members.names), members.value) for members in shape.unnamed_members()]
        except TooComplexError as error:
            raise NotRegularError(str(error)) from None
        if others and (shape.min_members or (named and shape.max_members is not None)):
            raise NotRegularError("it counts members")
        properties: list[tuple[Node, bool]] = []
        size = 0
        for name, value in named:
            properties.append((member(literal(name), value), name in shape.required))
            size += properties[-1][0].positions
            if size > MAX_POSITIONS:
                raise NotRegularError(_TOO_MANY)
        other = alt(others) if others else None
        if not named:
            inside = self._map(other, shape, spaces)
        elif ordered:
            inside = _in_order(properties, other, spaces)
        else:
            inside = self._permuted(properties, other, shape, spaces)
        return seq(literal("{"), spaces.opened, inside)

    def _map(self, other: Node | None, shape: ObjectShape, spaces: Separators) -> Node:
        """The text after the opening bracket of an object without named properties."""
        if other is None or shape.max_members == 0:
            return literal("}")
        more = repeat(seq(spaces.comma, other), 0, None if shape.max_members is None else shape.max_members - 1)
        return alt([literal("}"), seq(other, more, spaces.closing, literal("}"))])

    def _permuted(
        self, properties: list[tuple[Node, bool]], other: Node | None, shape: ObjectShape, spaces: Separators
    ) -> Node:
        """The text after the opening bracket, with members in any order."""
        everything = frozenset(range(len(properties)))
        known: dict[frozenset[int], Node] = {}

        def may_end(left: frozenset[int]) -> bool:
            count = len(properties) - len(left)
            return count >= shape.min_members and not any(properties[index][1] for index in left)

        def next_members(left: frozenset[int]) -> Iterator[tuple[Node, Node]]:
            if shape.max_members is not None and len(properties) - len(left) >= shape.max_members:
                return
            for index in sorted(left):
                yield properties[index][0], after(left - {index})

        def after(left: frozenset[int]) -> Node:
            """The text after a member, while the properties in ``left`` are unwritten."""
            if left not in known:
                loop = EMPTY if other is None else repeat(seq(spaces.comma, other), 0, None)
                options = [seq(spaces.closing, literal("}"))] if may_end(left) else []
                options.extend(seq(spaces.comma, one, rest) for one, rest in next_members(left))
                known[left] = seq(loop, alt(options))
            return known[left]

        options = [literal("}")] if may_end(everything) else []
        options.extend(seq(one, rest) for one, rest in next_members(everything))
        if other is not None:
            options.append(seq(other, after(everything)))
        return alt(options)


def _in_order(properties: list[tuple[Node, bool]], other: Node | None, spaces: Separators) -> Node:
    """The text after the opening bracket, with members in the schema's order and others at the end."""
    closing = seq(spaces.closing, literal("}"))
    others = repeat(seq(spaces.comma, other), 0, None) if other is not None else EMPTY
    first_required = next((index for index, (_, required) in enumerate(properties) if required), None)

    def later(start: int) -> Node:
        """The text after a member: the properties from ``start`` on, each after a comma."""
        rest = [
            seq(spaces.comma, one) if needed else optional(seq(spaces.comma, one)) for one, needed in properties[start:]
        ]
        return seq(*rest, others, closing)

    if first_required is not None:
        before = [optional(seq(one, spaces.comma)) for one, _ in properties[:first_required]]
        return seq(*before, properties[first_required][0], later(first_required + 1))
    options = [seq(_some_in_order([one for one, _ in properties], spaces), others, closing)]
    if other is not None:
        options.append(seq(other, others, closing))
    return alt([*options, literal("}")])


def _some_in_order(properties: list[Node], spaces: Separators) -> Node:
    """One or more of the properties, in order. The tree has n log n parts: either half may have the last one."""
    if len(properties) == 1:
        return properties[0]
    middle = len(properties) // 2
    first = [optional(seq(one, spaces.comma)) for one in properties[:middle]]
    return alt([seq(*first, _some_in_order(properties[middle:], spaces)), _some_in_order(properties[:middle], spaces)])
