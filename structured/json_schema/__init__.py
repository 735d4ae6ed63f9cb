"""From a JSON Schema to the language of its instances. Keywords without an exact form are rejected by name."""

from __future__ import annotations

from draftline.structured.errors import InvalidConstraintError, UnsupportedConstraintError, Violation
from draftline.structured.json_schema.document import Document
from draftline.structured.json_schema.forms.lark import LarkWriter
from draftline.structured.json_schema.forms.regular_form import NotRegularError, regular_form
from draftline.structured.json_schema.graph import Graph, build_graph
from draftline.structured.json_schema.limits import DEFAULT_LIMITS as DEFAULT_LIMITS
from draftline.structured.json_schema.limits import SchemaLimits as SchemaLimits
from draftline.structured.json_schema.normalise import Normaliser
from draftline.structured.json_schema.parsing import parse
from draftline.structured.json_schema.readings import POSSIBLY, SURELY, readings_differ
from draftline.structured.json_schema.spelling import IntegerSpelling, PropertyOrder, Whitespace
from draftline.structured.json_schema.unique_items import unique_paths
from draftline.structured.language import Language
from draftline.structured.regular.syntax import MAX_NESTING, nesting, to_regex

_TOO_DEEP = "the schema's references, or the groups of a pattern, nest too deep"


def json_schema_language(
    schema: str,
    *,
    whitespace: Whitespace = "free",
    best_effort: bool = False,
    limits: SchemaLimits = DEFAULT_LIMITS,
    order: PropertyOrder = "any",
    integers: IntegerSpelling = "standard",
    close_objects: bool = False,
) -> Language:
    """The language of a schema: the texts of all values that it accepts.

    Args:
        schema: the JSON text of the schema.
        whitespace: the whitespace allowed between the tokens of JSON.
        best_effort: ignore and report keywords that cannot be enforced, instead of rejecting the schema.
        limits: bounds on its size.
        order: the order of the members of an object.
        integers: the texts of integers.
        close_objects: leave out members that the schema does not mention, of objects that name properties and say
            nothing of other members.

    Raises:
        UnsupportedConstraintError: parts of it cannot be enforced exactly; the error names all of them.
        InvalidConstraintError: it is not a schema, over a limit, or matches nothing.
    """
    try:
        normaliser, graph = _graph(schema, limits, integers, close_objects)
        unique = unique_paths(graph, normaliser)
        violations = tuple(normaliser.violations.values())
        if violations and not best_effort:
            raise UnsupportedConstraintError(violations)
        regex, not_regular = _regex(graph, whitespace, limits, order)
        grammar = LarkWriter(graph, whitespace, order).write()
    except RecursionError:
        raise InvalidConstraintError(_TOO_DEEP) from None
    if len(grammar) > limits.grammar_bytes:
        raise InvalidConstraintError(f"the schema's grammar is larger than {limits.grammar_bytes} bytes")
    unenforced = (*violations, *normaliser.annotations.values())
    return Language(regex, grammar, unenforced, not_regular, graph.closed, unique)


def _graph(
    schema: str, limits: SchemaLimits, integers: IntegerSpelling, close_objects: bool = False
) -> tuple[Normaliser, Graph]:
    document = Document(parse(schema, limits))
    wider = Normaliser(document, limits, POSSIBLY, integers) if readings_differ(schema) else None
    normaliser = Normaliser(document, limits, SURELY, integers, wider, close_objects)
    return normaliser, build_graph(normaliser, normaliser.demand(document.root), limits)


def unenforceable(schema: str, limits: SchemaLimits) -> tuple[Violation, ...]:
    """The parts of a schema that cannot be enforced exactly. It takes less time than `json_schema_language`.

    Raises:
        InvalidConstraintError: it is not a schema, over a limit, or matches nothing.
    """
    try:
        normaliser, graph = _graph(schema, limits, "plain")
        unique_paths(graph, normaliser)
    except RecursionError:
        raise InvalidConstraintError(_TOO_DEEP) from None
    return tuple(normaliser.violations.values())


def _regex(
    graph: Graph, whitespace: Whitespace, limits: SchemaLimits, order: PropertyOrder
) -> tuple[str, None] | tuple[None, str]:
    if not limits.regex_bytes:
        return None, "#: no regular expression is asked for"
    try:
        tree = regular_form(graph, whitespace, order)
        if nesting(tree) > MAX_NESTING:
            return None, f"#: its regular expression would nest more than {MAX_NESTING} deep"
        regex = to_regex(tree)
    except NotRegularError as error:
        return None, f"#{error.pointer or ''}: {error.reason}"
    except RecursionError:
        return None, "#: it nests too deep for a regular expression"
    if len(regex) > limits.regex_bytes:
        return None, f"#: its regular expression would have more than {limits.regex_bytes} bytes"
    return regex, None


def json_object_language(whitespace: Whitespace) -> Language:
    """The texts of all JSON objects."""
    return json_schema_language('{"type": "object"}', whitespace=whitespace)
