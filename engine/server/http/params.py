"""From the fields of a body to the engine's parameters."""

from __future__ import annotations

import json
from collections.abc import Sized

from pydantic import ValidationError

from draftline.engine.errors import FieldViolation, InvalidRequestError
from draftline.engine.params import CONSTRAINT_KINDS, Constraint, SamplingParams, Speculation
from draftline.engine.protocol import EngineInfo, GenerateRequest, Prompt
from draftline.engine.server.http.body import Generating, ResponseFormat, StructuredOutputs
from draftline.engine.server.http.fields import SAMPLING, Names
from draftline.engine.server.limits import (
    CONSTRAINT_TEXTS,
    MAX_CONSTRAINT,
    choice_violations,
    length_violations,
    refuse,
    sampling_violations,
)
from draftline.engine.validation import violations


def sampling_names(body: Generating) -> list[tuple[str, str]]:
    """The paths of the sampling fields, by the names that the body has set."""
    given = [name for name in SAMPLING if getattr(body, name, None) is not None]
    unset = [name for name in SAMPLING if name in type(body).model_fields and name not in given]
    logprobs = "top_logprobs" if "top_logprobs" in type(body).model_fields else "logprobs"
    return [*((f"sampling.{SAMPLING[name]}", name) for name in (*given, *unset)), ("sampling.logprobs", logprobs)]


def sampling_params(body: Generating, info: EngineInfo, *, max_tokens: int | None, **fixed: object) -> SamplingParams:
    """The sampling parameters of a body.

    Args:
        body: the body.
        info: the engine's.
        max_tokens: where the body sets none; None for the engine's default.
        fixed: those that the endpoint sets by itself.

    Raises:
        InvalidRequestError: listing every invalid field by its name in the body.
    """
    given = {name: value for name in SAMPLING if (value := getattr(body, name, None)) is not None}
    limits = [name for name in given if SAMPLING[name] == "max_tokens"]
    if len(limits) > 1:
        raise InvalidRequestError(FieldViolation(limits[1], f"set one of {' and '.join(limits)}"))
    lists = {name: value for name, value in given.items() if isinstance(value, Sized) and not isinstance(value, str)}
    refuse(*sampling_violations(lambda name: lists.get(name, ()), info, ""))
    values = {"max_tokens": max_tokens} | {SAMPLING[name]: value for name, value in given.items()} | fixed
    if isinstance(bias := values.get("logit_bias"), dict):
        values["logit_bias"] = {_token_id(key): value for key, value in bias.items()}
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    try:
        return SamplingParams.model_validate(values, strict=True)
    except ValidationError as error:
        raise Names(tuple(sampling_names(body))).error(InvalidRequestError(*violations(error, "sampling"))) from None


def _token_id(key: str) -> int:
    # One text for each number: no two members are for one token.
    if not (key.isascii() and key.isdecimal() and len(key) <= 10 and str(int(key)) == key):
        raise InvalidRequestError(FieldViolation("logit_bias", f"{key[:32]!r} is not a token id"))
    return int(key)


def request_of(
    body: Generating, prompt: Prompt, sampling: SamplingParams, constrained: Constraint | None
) -> GenerateRequest:
    """The engine's request for a prompt of a body, with the options that all bodies have.

    Raises:
        InvalidRequestError: one of them is out of bounds.
    """
    return GenerateRequest(prompt, sampling, constrained, _speculation(body), body.priority or 0, body.timeout)


def _speculation(body: Generating) -> Speculation:
    """Whether the request drafts."""
    if body.speculation is None:
        return Speculation()
    try:
        return Speculation.model_validate(body.speculation.model_dump())
    except ValidationError as error:
        raise InvalidRequestError(*violations(error, "speculation")) from None


def constraint(
    body: Generating, form: ResponseFormat | None, field: str = "response_format", schema: str = "json_schema.schema"
) -> tuple[Constraint | None, list[tuple[str, str]]]:
    """The constraint of a body.

    Args:
        body: the body, with vLLM's ``structured_outputs``.
        form: OpenAI's form of the output.
        field: the name of that form in the body.
        schema: the name of the schema in it.

    Returns:
        The constraint, and the names of its fields.

    Raises:
        InvalidRequestError: two are set, or one is incomplete.
    """
    if body.structured_outputs is not None:
        if form is not None and form.type != "text":
            raise InvalidRequestError(FieldViolation("structured_outputs", f"set one of it and {field}"))
        return _structured(body.structured_outputs)
    if form is not None and form.type != "json_schema" and form.json_schema is not None:
        name = f"{field}.{schema.partition('.')[0]}"
        raise InvalidRequestError(FieldViolation(name, f"is set, but {field}.type is {form.type}"))
    if form is None or form.type == "text":
        return None, []
    if form.type == "json_object":
        return Constraint(json_object=True), [("constraint", field)]
    if form.json_schema is None or form.json_schema.schema_ is None:
        raise InvalidRequestError(FieldViolation(f"{field}.{schema}", "is missing"))
    names = [("constraint.json_schema", f"{field}.{schema}"), ("constraint", field)]
    text = _schema_text(form.json_schema.schema_, names[0][1])
    return Constraint(json_schema=text), names


def _structured(options: StructuredOutputs) -> tuple[Constraint, list[tuple[str, str]]]:
    values = {name: value for name, value in options.model_dump(by_alias=False).items() if value is not None}
    names = [("constraint.json_schema", "structured_outputs.json"), ("constraint", "structured_outputs")]
    wrong: list[FieldViolation] = []
    if (schema := values.pop("json_", None)) is not None:
        values["json_schema"] = _schema_text(schema, "structured_outputs.json")
    if (tag := values.get("structural_tag")) is not None:
        values["structural_tag"] = _json_text(tag)
    for name in CONSTRAINT_TEXTS:
        wrong += length_violations(values.get(name, ""), MAX_CONSTRAINT, f"structured_outputs.{name}", "characters")
    if "choice" in values:
        wrong += choice_violations(values["choice"], "structured_outputs.choice")
        values["choice"] = tuple(values["choice"])
    refuse(*wrong)
    try:
        return Constraint.model_validate(values), names
    except ValidationError as error:
        *most, last = ["json" if kind == "json_schema" else kind for kind in CONSTRAINT_KINDS]
        kinds = f"set exactly one of {', '.join(most)} and {last}"
        found = [
            FieldViolation(v.field, kinds if "exactly one" in v.description else v.description)
            for v in violations(error, "structured_outputs")
        ]
        raise InvalidRequestError(*found) from None


def _json_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _schema_text(value: object, field: str) -> str:
    text = _json_text(value)
    refuse(*length_violations(text, MAX_CONSTRAINT, field, "characters"))
    return text
