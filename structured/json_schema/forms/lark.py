"""A language as a Lark grammar for llguidance: its rules.

Scalars and member names are terminals (`lark_terminals`), so the parser sees a handful of lexemes a member. Other values are
rules. For members in any order, the 64-bit parameter of a rule records the properties written so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from draftline.structured.errors import InvalidConstraintError
from draftline.structured.json_schema.counting import counter
from draftline.structured.json_schema.enumerated import unique_values
from draftline.structured.json_schema.forms.lark_terminals import LarkTerminals, is_expressible, is_scalar
from draftline.structured.json_schema.forms.whitespace import separators
from draftline.structured.json_schema.graph import Graph
from draftline.structured.json_schema.member_bits import BITS, Layout, both_of, have_bits, when
from draftline.structured.json_schema.multiples import native_schemas
from draftline.structured.json_schema.shapes.arrays import ArrayShape
from draftline.structured.json_schema.shapes.demands import NEVER, Demands
from draftline.structured.json_schema.shapes.member_counts import MAX_ORDERED, MemberCounts
from draftline.structured.json_schema.shapes.numbers import NumberSet
from draftline.structured.json_schema.shapes.objects import ObjectShape
from draftline.structured.json_schema.shapes.strings import StringSet
from draftline.structured.json_schema.shapes.union import Shapes
from draftline.structured.json_schema.spelling import PropertyOrder, Whitespace
from draftline.structured.regular.syntax import literal, seq


class LarkWriter:
    """Writes the grammar of one graph.

    Args:
        graph: the language.
        whitespace: the whitespace allowed between the tokens of JSON.
        order: the order of the members of an object.
    """

    def __init__(self, graph: Graph, whitespace: Whitespace, order: PropertyOrder) -> None:
        self._graph = graph
        self._order = order
        self._rules: list[str] = []
        self._terminals = LarkTerminals()
        self._numbers = {value: number for number, value in enumerate(graph.nodes)}
        self._shared: dict[ArrayShape | ObjectShape | NumberSet, str] = {}
        spaces, terminal = separators(whitespace), self._terminals.text
        self._colon = terminal(spaces.colon)
        self._open_object = terminal(seq(literal("{"), spaces.opened))
        self._close_object = terminal(seq(spaces.closing, literal("}")))
        self._empty_object = terminal(literal("}"))
        self._open_array = terminal(seq(literal("["), spaces.opened))
        self._close_array = terminal(seq(spaces.closing, literal("]")))
        self._empty_array = terminal(literal("]"))
        self._comma = terminal(spaces.comma)

    def write(self) -> str:
        """Write the grammar, with the start symbol ``start``."""
        self._rules.append(f"start: {self._value(self._graph.root)}")
        for value, shapes in self._graph.nodes.items():
            if not is_scalar(shapes):
                self._rules.append(f"{self._value(value)}: {self._options(shapes)}")
        return "\n".join([*self._rules, *self._terminals.lines(), ""])

    # --- symbols ----------------------------------------------------------------------------------------------------

    def _value(self, value: Demands) -> str:
        """The symbol of a value: a terminal for a scalar, else a rule."""
        shapes = self._graph.nodes[value]
        if is_scalar(shapes):
            scalar = self._terminals.scalar(shapes)
            assert scalar, "values without instances have been pruned"
            return scalar
        return f"v{self._numbers[value]}"

    def _rule(self, name: str, options: Sequence[str]) -> str:
        self._rules.append(f"{name}: " + "\n  | ".join(options))
        return name

    def _parametric(self, name: str, options: Sequence[str]) -> None:
        """A rule with a parameter.

        llguidance 1.9 inlines a rule with one alternative, and then cannot apply two steps at once. It also rejects a
        parameter without a condition on it. An alternative that never holds avoids both.
        """
        never = options[0].partition(" %if ")[0] + " %if lt(_, 0)"
        self._rule(f"{name}::_", [*options, never] if len(options) == 1 or "%if" not in "".join(options) else options)

    def _options(self, shapes: Shapes) -> str:
        options = [self._array(shape) for shape in shapes.arrays]
        options.extend(self._object(shape) for shape in shapes.objects)
        options.extend(self._native(numbers) for numbers in shapes.numbers if not is_expressible(numbers))
        scalar = self._terminals.scalar(shapes)
        assert scalar or options, "values without instances have been pruned"
        return "\n  | ".join(([scalar] if scalar else []) + list(dict.fromkeys(options)))

    def _native(self, numbers: NumberSet) -> str:
        """Multiples without a short expression, as JSON Schemas for llguidance, which is exact for plain notation."""
        name = self._shared.get(numbers)
        if name is None:
            name = self._shared[numbers] = f"d{len(self._shared)}"
            self._rule(name, [f"%json {schema}" for schema in native_schemas(numbers)])
        return name

    # --- arrays -----------------------------------------------------------------------------------------------------

    def _array(self, shape: ArrayShape) -> str:
        name = self._shared.get(shape)
        if name is None:
            name = self._shared[shape] = f"a{len(self._shared)}"
            values = unique_values(shape, self._graph.nodes.__getitem__) if shape.unique else None
            if values is not None:
                self._distinct(name, shape, values)
            elif shape.contains:
                self._counted(name, shape)
            else:
                self._plain_array(name, shape)
        return name

    def _plain_array(self, name: str, shape: ArrayShape) -> None:
        empty = f"{self._open_array} {self._empty_array}"
        if shape.max_items == 0:
            self._rule(name, [empty])
            return
        # From the back: the items that may follow each item of the prefix, and whether the array may end there.
        prefix = [self._value(value) for value in shape.prefix]
        rest = "" if shape.rest == NEVER else self._value(shape.rest)
        minimum = shape.min_items - len(prefix)
        maximum = None if shape.max_items is None else shape.max_items - len(prefix)
        tail = ""
        if rest and (maximum is None or maximum > 0):
            if prefix:
                tail = f"({self._comma} {rest}){_repetition(max(minimum, 0), maximum)}"
            else:
                more = _repetition(max(minimum, 1) - 1, None if maximum is None else maximum - 1)
                tail = f"{rest} ({self._comma} {rest}){more}" if maximum != 1 else rest
        for index in range(len(prefix) - 1, -1, -1):
            separated = f"{self._comma} {prefix[index]}" if index else prefix[index]
            tail = f"{separated} {tail}".rstrip()
            if index and shape.min_items <= index:
                tail = f"({tail})?"
        full = f"{self._open_array} {tail} {self._close_array}"
        self._rule(name, [empty, full] if shape.min_items == 0 else [full])

    def _counted(self, name: str, shape: ArrayShape) -> None:
        automaton = counter(shape, lambda value: value in self._graph.nodes)
        assert automaton is not None
        for state, (steps, accepts) in enumerate(zip(automaton.steps, automaton.accepts, strict=True)):
            options = [f"{self._comma} {self._value(item)} {name}_{target}" for item, target in steps]
            self._rule(f"{name}_{state}", ([self._close_array] if accepts else []) + options)
        first = [f"{self._open_array} {self._value(item)} {name}_{target}" for item, target in automaton.steps[0]]
        empty = [f"{self._open_array} {self._empty_array}"] if automaton.accepts[0] else []
        self._rule(name, empty + first)

    def _distinct(self, name: str, shape: ArrayShape, values: list[Shapes]) -> None:
        count = len(values)
        done = f"bit_count_ge([0:{count}], {shape.min_items})" if shape.min_items else ""
        # There are no more items than values. llguidance has no bound of 64 and more.
        bounded = shape.max_items is not None and shape.max_items < count
        room = f"bit_count_lt([0:{count}], {shape.max_items})" if bounded else ""
        items = [
            (self._terminals.scalar(value), f"set_bit({bit})", both_of(f"bit_clear({bit})", room))
            for bit, value in enumerate(values)
        ]
        more = [f"{self._close_array}{when(done)}"]
        more.extend(f"{self._comma} {item} {name}_more::{step}{when(free)}" for item, step, free in items)
        self._parametric(f"{name}_more", more)
        first = [] if shape.min_items else [self._empty_array]
        first.extend(f"{item} {name}_more::{step}" for item, step, _ in items)
        self._parametric(f"{name}_first", first)
        self._rule(name, [f"{self._open_array} {name}_first::0x0"])

    # --- objects ----------------------------------------------------------------------------------------------------

    def _object(self, shape: ObjectShape) -> str:
        name = self._shared.get(shape)
        if name is None:
            name = self._shared[shape] = f"o{len(self._shared)}"
            if not shape.possible and not shape.some and not shape.min_members:
                self._map(name, shape)
            elif self._in_order(shape):
                self._ordered(name, shape)
            else:
                self._unordered(name, shape)
        return name

    def _in_order(self, shape: ObjectShape) -> bool:
        if len(shape.required) > BITS and len(shape.named) > MAX_ORDERED:
            raise InvalidConstraintError(
                f"an object has {len(shape.named)} named members, {len(shape.required)} of them required; at most"
                f" {MAX_ORDERED} are allowed if more than {BITS} are required"
            )
        if shape.some or shape.min_members or shape.max_members is not None:
            return not have_bits(shape)
        return len(shape.required) > BITS or (self._order == "schema" and len(shape.named) <= MAX_ORDERED)

    def _others(self, shape: ObjectShape) -> Iterator[str]:
        for members in shape.unnamed_members():
            yield f"{self._key(members.names)} {self._value(members.value)}"

    def _map(self, name: str, shape: ObjectShape) -> None:
        others = list(self._others(shape))
        empty = f"{self._open_object} {self._empty_object}"
        if not others or shape.max_members == 0:
            self._rule(name, [empty])
            return
        member = self._rule(f"{name}_member", others)
        count = _repetition(0, None if shape.max_members is None else shape.max_members - 1)
        more = f"({self._comma} {member}){count}" if shape.max_members != 1 else ""
        self._rule(name, [empty, f"{self._open_object} {member} {more} {self._close_object}"])

    def _key(self, names: StringSet) -> str:
        """The terminals of a member's name and its colon.

        Separate terminals are faster: llguidance skips most of a vocabulary at once only in a terminal that ends like a
        string.
        """
        return f"{self._terminals.member_name(names)} {self._colon}"

    def _member(self, name: str, value: Demands) -> str:
        return f"{self._key(StringSet(only=frozenset([name])))} {self._value(value)}"

    def _ordered(self, name: str, shape: ObjectShape) -> None:
        """Properties in the schema's order, then all other members. Each rule knows how many members came before it."""
        named = shape.possible
        others = list(self._others(shape))
        counts = MemberCounts(shape)
        last = len(named)
        other = self._rule(f"{name}_other", others) if others else ""

        def ending(count: int) -> str:
            """Unnamed members, behind this many others, and the closing bracket."""
            least, most = counts.rest(count)
            more = f"({self._comma} {other}){_repetition(least, most)}" if other and most != 0 else ""
            return f"{more} {self._close_object}"

        for count in counts.before(last):
            self._rule(f"{name}_m{last}_{count}", [ending(count)])
        if 0 in counts.before(last):
            first = [] if counts.missing else [self._empty_object]
            first.extend([f"{other} {ending(counts.after(0) or 0)}"] if other else [])
            self._rule(f"{name}_f{last}", first)
        for index in range(last - 1, -1, -1):
            member, may_miss = self._member(*named[index]), named[index][0] not in shape.required
            later = counts.before(index + 1)
            for count in counts.before(index):
                after = counts.after(count) if may_miss else count
                taken = [f"{member} {name}_m{index + 1}_{after}"] if after in later else []
                may_skip = may_miss and count in later
                if count == 0:  # the first member follows no comma
                    self._rule(f"{name}_f{index}", taken + [f"{name}_f{index + 1}"] * may_skip)
                skipped = [f"{name}_m{index + 1}_{count}"] * may_skip
                self._rule(f"{name}_m{index}_{count}", [f"{self._comma} {one}" for one in taken] + skipped)
        self._rule(name, [f"{self._open_object} {name}_f0"])

    def _unordered(self, name: str, shape: ObjectShape) -> None:
        """Properties in any order. Those that are required, counted or must not come twice have a bit."""
        layout = Layout(shape)
        needed: list[tuple[str, str, str]] = []  # member, step of the parameter, condition
        further: list[tuple[str, str, str]] = []
        for one, value in shape.possible:
            bit = layout.bit_of.get(one)
            free = "" if bit is None else f"bit_clear({bit})"
            step = "_" if bit is None else f"set_bit({bit})"
            (needed if one in shape.required else further).append((self._member(one, value), step, free))
        other_step = "_" if layout.other_bit is None else f"set_bit({layout.other_bit})"
        further.extend((other, other_step, "") for other in self._others(shape))
        for index, members in enumerate(shape.some):
            member = f"{self._key(members.names)} {self._value(members.value)}"
            further.append((member, f"set_bit({layout.some_bit + index})", ""))
        more = [f"{self._close_object}{when(layout.done)}"]
        more.extend(f"{self._comma} {one} {name}_more::{step}{when(free)}" for one, step, free in needed)
        first = [f"{self._empty_object}{when(layout.done)}"]
        first.extend(f"{one} {name}_more::{step}" for one, step, _ in needed)
        start = [f"{self._open_object} {name}_first::0x0"]
        if layout.counter:
            # A rule applies one step to its parameter: the counter's step is between the comma and the member.
            self._parametric(f"{name}_next", [f"{one} {name}_more::{step}{when(free)}" for one, step, free in further])
            more.append(f"{self._comma} {name}_next::incr({layout.counter}){when(layout.room)}")
            start.append(f"{self._open_object} {name}_next::{hex(layout.one)}")
        else:
            more.extend(
                f"{self._comma} {one} {name}_more::{step}{when(both_of(free, layout.room))}"
                for one, step, free in further
            )
            first.extend(f"{one} {name}_more::{step}" for one, step, _ in further)
        self._parametric(f"{name}_more", more)
        self._parametric(f"{name}_first", first)
        self._rule(name, start)


def _repetition(least: int, most: int | None) -> str:
    """How often a part of a rule comes, in Lark."""
    if least == 0 and most is None:
        return "*"
    return f"{{{least},{'' if most is None else most}}}"
