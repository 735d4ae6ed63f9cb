"""Bounds on the size of a schema, so that no request occupies a compiler for long."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchemaLimits:
    """Bounds on one JSON Schema. A schema over one of them raises an InvalidConstraintError that names it.

    Attributes:
        schema_bytes: length of the schema's text in UTF-8.
        depth: nesting depth of the schema's JSON.
        enum_values: values in all enums together.
        shapes: shapes in the normalised form.
        intersections: pairs of shapes intersected during normalisation, about 30 µs each.
        regex_bytes: length of the regular expression; a longer one is dropped, without an error. 0: it is not written.
        grammar_bytes: length of the grammar.
    """

    schema_bytes: int = 1 << 20
    depth: int = 128
    enum_values: int = 20_000
    shapes: int = 20_000
    intersections: int = 60_000
    regex_bytes: int = 1 << 16
    grammar_bytes: int = 1 << 22


DEFAULT_LIMITS = SchemaLimits()
