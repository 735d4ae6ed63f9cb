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
    """Make a constraint that outputs are JSON by a schema.

    Args:
        schema: a pydantic model, a JSON Schema as a dict, or one as JSON text. Objects of a model have its fields and no
            others, unless the model's configuration says otherwise.
        whitespace: white space between the tokens of JSON.
        best_effort: accept keywords that cannot be enforced, and report them.
        close_within_budget: finish the document within max_tokens.

    Example:
        >>> [output] = llm.generate("Ada Lovelace was born in", constraint=Schema(Person))
        >>> Person.model_validate_json(output.outputs[0].text)
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
    """Close a model's schema: objects with fields get no other members, unless the schema allows them."""
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
