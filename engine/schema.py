"""``Schema``: a constraint from a Python type or a JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from draftline.engine.errors import FieldViolation, InvalidRequestError
from draftline.engine.params import Constraint
from draftline.structured.types.derive import typed_schema


def Schema(
    schema: Any,
    *,
    whitespace: Literal["compact", "spaced", "free"] = "free",
    best_effort: bool = False,
    close_within_budget: bool = False,
    integers: Literal["plain", "standard"] = "plain",
) -> Constraint:
    """Make a constraint that outputs are JSON of a type, or by a schema.

    Args:
        schema: a type (a pydantic model, a dataclass, a TypedDict, ``list[Person]``, a union, a msgspec Struct), a JSON
            Schema as a dict, or one as JSON text. The constraint remembers a type: see `Constraint.output_type`.
        whitespace: white space between the tokens of JSON.
        best_effort: accept keywords that cannot be enforced, and report them.
        close_within_budget: finish the document within max_tokens.
        integers: texts of a JSON Schema's integers: digits alone, or also 1.0 and 1e16 as the standard has it. Those of a
            type are always plain.

    Example:
        >>> [output] = llm.generate("Ada Lovelace was born in", constraint=Schema(Person))
        >>> Person.model_validate_json(output.outputs[0].text)
    """
    typed = None
    if isinstance(schema, str):
        text = schema
    elif isinstance(schema, Mapping):
        text = json.dumps(schema)
    else:
        if integers != "plain":
            raise InvalidRequestError(FieldViolation("integers", "must be plain for a type: strict ints reject 1.0"))
        typed = typed_schema(schema)
        text = typed.json_schema
    constraint = Constraint(
        json_schema=text,
        whitespace=whitespace,
        best_effort=best_effort,
        close_within_budget=close_within_budget,
        integers=integers,
    )
    return constraint if typed is None else constraint.of_type(typed)
