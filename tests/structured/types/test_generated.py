"""Random types: each accepts every text of its language, in lax and in strict mode."""

from __future__ import annotations

import random
import warnings
from typing import Annotated, Any, Literal, NotRequired

import pytest
from examples import examples
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from pydantic import AliasChoices, AliasPath, ConfigDict, Field, TypeAdapter, create_model, with_config
from pydantic.dataclasses import dataclass
from random_types import LEAVES, types, whole_models
from typing_extensions import TypedDict
from walk import Walker

from draftline.structured.errors import UnsupportedConstraintError
from draftline.structured.json_schema import json_schema_language
from draftline.structured.types.derive import typed_schema

LIMIT = 400
"""The most bytes of an answer; a longer one is given up, as max_tokens would."""


def answers(kind: Any, source: random.Random, rounds: int, **options: Any) -> int:
    """Write texts of a type by both of its forms, let the type read those that end, and count them."""
    try:
        typed = typed_schema(kind)
    except UnsupportedConstraintError:
        return 0
    language = json_schema_language(typed.json_schema, order="schema", integers="plain", **options)
    walkers = [Walker.of_grammar(language.grammar)]
    if language.regex is not None:
        walkers.append(Walker.of_regex(language.regex))
    adapter = TypeAdapter(kind)
    complete = 0
    for walker in walkers:
        for _ in range(rounds):
            text = walker.write(source, LIMIT)
            if text is not None:
                complete += 1
                adapter.validate_json(text)
                adapter.validate_json(text, strict=True)
    return complete


@pytest.mark.parametrize("kind", LEAVES, ids=str)
def test_every_kind_of_type(kind: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hypothesis is not at work here: types may warn when they are made
        assert answers(kind, random.Random(0), 12, whitespace="compact") > 4


@seed(16)
@settings(
    max_examples=examples(25),
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(whole_models, st.integers(0, 2**32), st.sampled_from(["compact", "spaced", "free"]))
def test_generated_models(kind: Any, number: int, whitespace: str) -> None:
    answers(kind, random.Random(number), 4, whitespace=whitespace)


def aliased(source: random.Random) -> Any:
    """A model, dataclass or TypedDict of few names, each of which several fields may be read from."""
    steps: list[Any] = [*"abq", 0, 1, -1]
    fields: dict[str, Any] = {}
    form = source.randrange(3)
    for name in source.sample("abc", 3):
        paths = [
            AliasPath(source.choice("abcq"), *source.choices(steps, k=source.choice([0, 0, 1, 1, 2])))
            for _ in range(source.randint(1, 3))
        ]
        alias = source.choice([AliasChoices(*paths), paths[0], source.choice("abcq"), None])
        kind = source.choice([int, Literal["p"], Literal[1], Literal[True], dict[str, int], list[int], int | None])
        if form == 2:
            kind = Annotated[kind, Field(validation_alias=alias)]
            fields[name] = NotRequired[kind] if source.random() < 0.5 else kind
        else:
            default = {"default": None} if source.random() < 0.5 else {}
            fields[name] = (kind, Field(validation_alias=alias, **default))
    config = ConfigDict(
        populate_by_name=source.random() < 0.5, extra=source.choice(["ignore", "ignore", "forbid", "allow"])
    )
    if form == 0:
        return create_model("Aliased", __config__=config, **fields)
    if form == 1:
        values = {name: field for name, (_, field) in fields.items()}
        kinds = {name: kind for name, (kind, _) in fields.items()}
        return dataclass(type("Aliased", (), {"__annotations__": kinds, **values}), config=config, kw_only=True)
    return with_config(config)(TypedDict("Aliased", fields))


def test_fields_that_may_read_each_other_s_members() -> None:
    source = random.Random(5)
    counts = [answers(aliased(source), source, 4, whitespace="compact") for _ in range(60)]
    assert sum(count > 0 for count in counts) > 20


complete_answers: list[int] = []


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(
    max_examples=400,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(st.one_of(whole_models, whole_models, types(2)), st.integers(0, 2**32), st.sampled_from(["compact", "free"]))
def _many_models(kind: Any, number: int, whitespace: str) -> None:
    complete_answers.append(answers(kind, random.Random(number), 60, whitespace=whitespace))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_300_models_and_20000_answers() -> None:
    complete_answers.clear()
    _many_models()
    assert sum(count > 0 for count in complete_answers) >= 300
    assert sum(complete_answers) >= 20_000, sum(complete_answers)
