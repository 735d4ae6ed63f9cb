"""``Schema``: a constraint from a pydantic model or a JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel

from draftline.engine.params import Constraint


def Schema(
    schema: type[BaseModel] | Mapping[str, object] | str,
    *,
    whitespace: Literal["compact", "spaced", "free"] = "free",
    best_effort: bool = False,
    close_within_budget: bool = False,
) -> Constraint:
    """A constraint to the JSON of one schema.

    Args:
        schema: a pydantic model, a JSON Schema as a dict, or as JSON text. Where a model does not say what becomes of
            other members than its fields, there are none.
        whitespace: what may stand between the tokens of JSON.
        best_effort: accept keywords that cannot be enforced.
        close_within_budget: finish the text within max_tokens.

    Example:
        >>> llm.generate("Ada Lovelace was born in", constraint=Schema(Person))
    """
    if isinstance(schema, str):
        text = schema
    elif isinstance(schema, Mapping):
        text = json.dumps(schema)
    else:
        text = json.dumps(_closed(schema.model_json_schema()))
    return Constraint(
        json_schema=text, whitespace=whitespace, best_effort=best_effort, close_within_budget=close_within_budget
    )


def _closed(schema: object) -> object:
    """A model's schema, in which objects with fields have no other members unless it says so."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {
        name: {key: _closed(value) for key, value in part.items()} if name in ("properties", "$defs") else _closed(part)
        for name, part in schema.items()
        if name not in ("default", "examples", "const", "enum")
    }
    closed |= {name: schema[name] for name in ("const", "enum") if name in schema}
    if schema.get("type") == "object" and "properties" in schema:
        closed.setdefault("additionalProperties", False)
    return closed
