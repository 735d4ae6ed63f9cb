"""Core schemas of several steps, which classes write that pydantic does not know."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter
from pydantic_core import CoreSchema, core_schema
from walk import Walker

from draftline.structured.errors import UnsupportedConstraintError
from draftline.structured.json_schema import json_schema_language
from draftline.structured.types.derive import typed_schema


class Other:
    def __init__(self, value: Any) -> None:
        self.value = value


def upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


def split(value: str) -> list[str]:
    return value.split(",")


WRAP = core_schema.no_info_plain_validator_function(Other)
SPLIT = core_schema.no_info_after_validator_function(split, core_schema.str_schema(max_length=3))
UPPER = core_schema.no_info_plain_validator_function(upper)
TEXT = core_schema.str_schema(max_length=3)
NUMBER = core_schema.int_schema(ge=1, le=3)


def of_steps(*steps: CoreSchema) -> Any:
    """A class with a chain as its core schema, beside its instances, as pydantic's documentation has it."""

    class OfSteps:
        @classmethod
        def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
            chain = core_schema.chain_schema(list(steps))
            python = core_schema.union_schema([core_schema.is_instance_schema(Other), chain])
            return core_schema.json_or_python_schema(json_schema=chain, python_schema=python)

    return OfSteps


@pytest.mark.parametrize(
    ("steps", "accepted", "rejected", "functions"),
    [
        ([NUMBER, WRAP], "1 3", '0 4 "1"', ["Other"]),
        ([TEXT, UPPER, WRAP], '"" "abc"', '"abcd" 1', ["upper", "Other"]),
        ([UPPER, TEXT], '"abc"', '"abcd" 1', ["upper"]),
        ([UPPER, UPPER, NUMBER, core_schema.int_schema(multiple_of=2), WRAP], "2", "1 3", ["upper", "Other"]),
        ([TEXT, WRAP, core_schema.is_instance_schema(Other)], '"abc"', '"abcd"', ["Other"]),
        ([TEXT, UPPER, core_schema.literal_schema(["ABC"])], '"abc"', '"abcd"', ["upper"]),
        ([SPLIT, core_schema.list_schema(NUMBER)], '"1" "1,2"', '"1,2," [1]', ["split"]),
    ],
    ids=["behind", "two behind", "before", "around", "of instances", "in the middle", "behind a transformed text"],
)
def test_functions_in_a_chain_are_validators(
    steps: list[CoreSchema], accepted: str, rejected: str, functions: list[str]
) -> None:
    model: Any = type("M", (BaseModel,), {"__annotations__": {"x": of_steps(*steps)}})
    typed = typed_schema(model)
    assert [one.reason for one in typed.unenforced] == [f"the validator {name} is Python code" for name in functions]
    walker = Walker.of_language(json_schema_language(typed.json_schema, integers="plain"))
    for text in accepted.split():
        assert walker.accepts(f'{{"x":{text}}}')
        TypeAdapter(model).validate_json(f'{{"x":{text}}}')
    for text in rejected.split():
        assert not walker.accepts(f'{{"x":{text}}}')


@pytest.mark.parametrize("steps", [[UPPER, WRAP], [core_schema.is_instance_schema(Other), WRAP]])
def test_a_chain_without_json_is_refused(steps: list[CoreSchema]) -> None:
    model: Any = type("M", (BaseModel,), {"__annotations__": {"x": of_steps(*steps)}})
    with pytest.raises(UnsupportedConstraintError) as caught:
        typed_schema(model)
    assert {one.pointer for one in caught.value.violations} == {"M.x"}


def stating(schema: CoreSchema, stated: dict[str, Any]) -> Any:
    """A class with a core schema, and with a JSON Schema that says more."""

    class Stating:
        @classmethod
        def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
            return deepcopy(schema)  # pydantic adds to it

        @classmethod
        def __get_pydantic_json_schema__(cls, inner: Any, handler: Any) -> dict[str, Any]:
            return {"type": "string", "title": "A title", **stated}

    return Stating


def behind(schema: CoreSchema) -> CoreSchema:
    return core_schema.no_info_after_validator_function(lambda value: value, schema)


CHAIN = core_schema.chain_schema([TEXT, UPPER])


@pytest.mark.parametrize(
    ("schema", "stated", "accepted", "rejected"),
    [
        (behind(TEXT), {"enum": ["EUR", "USD", "longer"]}, '"EUR" "USD"', '"abc" "longer"'),
        (behind(TEXT), {"pattern": "^[a-z]{2,9}$"}, '"ab" "abc"', '"a" "AB" "abcd"'),
        (CHAIN, {"pattern": "^[a-z]{2,9}$"}, '"ab" "abc"', '"a" "AB" "abcd"'),
        (
            core_schema.json_or_python_schema(CHAIN, core_schema.is_instance_schema(str)),
            {"enum": ["a"]},
            '"a"',
            '"b"',
        ),
        (behind(TEXT), {"pattern": "(?i)a"}, '"abc" "b"', '"abcd"'),
        (behind(TEXT), {"enum": ["abcd"]}, '"abc" "b"', '"abcd"'),
        (behind(TEXT), {"type": "integer"}, '"abc" "b"', '"abcd" 1'),
        (behind(core_schema.int_schema()), {"enum": ["a"]}, "1", '"a"'),
        (TEXT, {"enum": ["a"]}, '"b" "abc"', '"abcd"'),
    ],
    ids=[
        "an enum",
        "a pattern",
        "of a chain",
        "of a chain beside Python",
        "in another dialect",
        "without a value",
        "of another kind",
        "no string",
        "without a function",
    ],
)
def test_what_a_class_states_of_its_strings_beside_a_function(
    schema: CoreSchema, stated: dict[str, Any], accepted: str, rejected: str
) -> None:
    typed = typed_schema(stating(schema, stated))
    walker = Walker.of_language(json_schema_language(typed.json_schema, integers="plain"))
    words = f"{accepted} {rejected}".split()
    assert [text for text in words if walker.accepts(text)] == accepted.split()
