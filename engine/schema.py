"""``Schema``: a constraint from a Python type or a JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar, overload

from draftline.engine.errors import FieldViolation, InvalidRequestError
from draftline.engine.params import Constraint, Integers, MemberOrder, Whitespace
from draftline.structured.errors import InvalidConstraintError, UnsupportedConstraintError
from draftline.structured.json_schema.bundling import bundled
from draftline.structured.types.derive import typed_schema
from draftline.structured.types.typed_schema import TypedSchema

T = TypeVar("T")


@overload
def Schema(
    schema: type[T],
    *,
    whitespace: Whitespace = ...,
    best_effort: bool = ...,
    close_within_budget: bool = ...,
    integers: Integers = ...,
    member_order: MemberOrder = ...,
    close_objects: bool = ...,
    documents: Mapping[str, str | Mapping[str, Any]] | None = ...,
) -> Constraint[T]: ...
@overload
def Schema(
    schema: object,
    *,
    whitespace: Whitespace = ...,
    best_effort: bool = ...,
    close_within_budget: bool = ...,
    integers: Integers = ...,
    member_order: MemberOrder = ...,
    close_objects: bool = ...,
    documents: Mapping[str, str | Mapping[str, Any]] | None = ...,
) -> Constraint[Any]: ...
def Schema(
    schema: Any,
    *,
    whitespace: Whitespace = "free",
    best_effort: bool = False,
    close_within_budget: bool = False,
    integers: Integers = "plain",
    member_order: MemberOrder = "schema",
    close_objects: bool = False,
    documents: Mapping[str, str | Mapping[str, Any]] | None = None,
) -> Constraint[Any]:
    """Make a constraint that outputs are JSON of a type, or by a schema.

    Args:
        schema: a type (a pydantic model, a dataclass, a TypedDict, ``list[Person]``, a union, a msgspec Struct), a JSON
            Schema as a dict, or one as JSON text. The constraint remembers a type: see `Constraint.output_type`.
        whitespace: white space between the tokens of JSON.
        best_effort: accept keywords that cannot be enforced, and report them.
        close_within_budget: finish the document within max_tokens.
        integers: texts of a JSON Schema's integers: digits alone, or also 1.0 and 1e16 as the standard has it. Those of
            a type are always plain.
        member_order: order of an object's members: the schema's wherever possible, or any.
        close_objects: leave out members that a schema does not mention, where it does not say that others may be there.
            Types always say what they have.
        documents: other JSON Schemas that a JSON Schema refers to, by the URIs of its references. They are put into the
            schema, since nothing is fetched.

    Raises:
        InvalidRequestError: parts of a type cannot be guaranteed, or it is no type. The error names every such field.
            Or a document is no schema.

    Example:
        >>> [output] = llm.generate("Ada Lovelace was born in", constraint=Schema(Person))
        >>> output.parsed
    """
    typed: TypedSchema[Any] | None = None
    if isinstance(schema, str | Mapping):
        text = _bundled(_text(schema), documents or {})
    else:
        if documents:
            raise InvalidRequestError(FieldViolation("documents", "are for JSON Schemas: a type refers to none"))
        if integers != "plain":
            raise InvalidRequestError(FieldViolation("integers", "must be plain for a type: strict ints reject 1.0"))
        typed = _typed(schema)
        text = typed.json_schema
    constraint: Constraint[Any] = Constraint(
        json_schema=text,
        whitespace=whitespace,
        best_effort=best_effort,
        close_within_budget=close_within_budget,
        integers=integers,
        member_order=member_order,
        close_objects=close_objects,
    )
    return constraint if typed is None else constraint.of_type(typed)


def _text(schema: str | Mapping[str, object], field: str = "schema") -> str:
    if isinstance(schema, str):
        return schema
    try:
        return json.dumps(schema)
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(FieldViolation(field, f"is no JSON: {error}")) from error


def _bundled(schema: str, documents: Mapping[str, str | Mapping[str, Any]]) -> str:
    if not documents:
        return schema
    try:
        return bundled(schema, {uri: _text(document, "documents") for uri, document in documents.items()})
    except InvalidConstraintError as error:
        raise InvalidRequestError(FieldViolation("documents", str(error))) from error


def _typed(kind: Any) -> TypedSchema[Any]:
    try:
        return typed_schema(kind)
    except UnsupportedConstraintError as error:
        fields = [FieldViolation(violation.pointer or "schema", violation.reason) for violation in error.violations]
        raise InvalidRequestError(*fields) from error
    except InvalidConstraintError as error:
        raise InvalidRequestError(FieldViolation("schema", str(error))) from error
