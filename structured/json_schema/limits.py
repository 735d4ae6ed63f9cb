"""How large a schema may be, so that a request cannot occupy a compiler for long."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchemaLimits:
    """Bounds on one JSON Schema; going over one is an InvalidConstraintError that names it.

    Attributes:
        schema_bytes: length of the schema's text in UTF-8.
        depth: how deep the schema's JSON may nest.
        enum_values: values in all enums together.
        shapes: shapes in the normalised form.
        intersections: pairs of shapes that are intersected on the way there: some 20 µs each.
        regex_bytes: above this length the language has no regex form.
        grammar_bytes: above this length of the grammar the schema is refused.
    """

    schema_bytes: int = 1 << 20
    depth: int = 128
    enum_values: int = 20_000
    shapes: int = 20_000
    intersections: int = 200_000
    regex_bytes: int = 1 << 16
    grammar_bytes: int = 1 << 22


DEFAULT_LIMITS = SchemaLimits()
