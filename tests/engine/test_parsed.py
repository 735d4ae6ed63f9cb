"""`parsed`: the value that an output stands for, on every face."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytest
from four_faces import FACES, FourFaces
from pydantic import BaseModel, TypeAdapter, field_validator

from draftline import (
    AsyncEngine,
    Constraint,
    IncompleteOutputError,
    InvalidOutputError,
    OutputError,
    Reasoning,
    SamplingParams,
    Schema,
)
from draftline.engine.outputs import TagSpan

PARAMS = SamplingParams(seed=1, max_tokens=60)


class Flag(BaseModel):
    colour: Literal["red", "blue"]


@dataclass
class Point:
    x: Literal[0, 1]


class Refused(BaseModel):
    a: Literal[1]

    @field_validator("a")
    @classmethod
    def _never(cls, a: int) -> int:
        raise ValueError("is never right")


class Faulty(Refused):
    @field_validator("a")
    @classmethod
    def _never(cls, a: int) -> int:
        raise KeyError(a)


@pytest.mark.parametrize("face", FACES)
def test_what_follows_the_reasoning_is_parsed_and_tags_have_their_places(faces: FourFaces, face: str) -> None:
    reasoning = Reasoning(begin="<é>", end="</é>", max_tokens=20)
    constraint = Schema(Flag).model_copy(update={"reasoning": reasoning}).of_type(Schema(Flag).typed)
    [whole] = faces.call(face, "generate", "abc", PARAMS, constraint=constraint)
    (output,) = whole.outputs
    assert output.parsed.colour in ("red", "blue")
    assert output.text == f"<é>{output.reasoning}</é>{output.answer}"
    assert output.finished.json_valid

    tag = {"type": "tag", "begin": "<a>", "content": {"type": "regex", "pattern": "é{2}"}, "end": "."}
    form = {"type": "triggered_tags", "triggers": ["<"], "tags": [tag], "at_least_one": True, "stop_after_first": True}
    constraint = Constraint(structural_tag={"type": "structural_tag", "format": form})
    [whole] = faces.call(face, "generate", "abc", PARAMS, constraint=constraint)
    (output,) = whole.outputs
    assert output.parsed == output.text == "<a>éé."
    assert output.finished.tags == (TagSpan("/format/tags/0", "<a>", 0, 3, 5, 6),)
    assert (output.reasoning, output.answer) == (None, output.text)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("kind", [Flag, Point, list[Literal["a"]] | None, tuple[Flag, Point]])
def test_a_constraint_of_a_type_gives_values_of_the_type(faces: FourFaces, face: str, kind: Any) -> None:
    for constraint in (Schema(kind, whitespace="compact"), *([kind] if kind is Flag else [])):
        [output] = faces.call(face, "generate", "abc", PARAMS, constraint=constraint)
        assert TypeAdapter(kind).validate_python(output.parsed, strict=True) == output.parsed
        assert output.parsed is output.parsed
        assert output.parsed is output.outputs[0].parsed


@pytest.mark.parametrize("face", FACES)
def test_what_a_text_without_a_type_stands_for(faces: FourFaces, face: str) -> None:
    for constraint, values in (
        (Schema({"enum": [{"a": [1]}]}), [{"a": [1]}]),
        (Constraint(choice=["yes", "no"]), ["yes", "no"]),
        (Constraint(regex="[ab]"), ["a", "b"]),
    ):
        [output] = faces.call(face, "generate", "abc", PARAMS, constraint=constraint)
        assert output.parsed in values
    [output] = faces.call(face, "generate", "abc", SamplingParams(seed=1, max_tokens=3))
    assert output.parsed == output.outputs[0].text


@pytest.mark.parametrize("face", FACES)
def test_an_output_that_is_no_value_says_why(faces: FourFaces, face: str) -> None:
    [output] = faces.call(face, "generate", "abc", SamplingParams(max_tokens=4, seed=1), constraint=Flag)
    with pytest.raises(IncompleteOutputError) as cut:
        output.parsed  # noqa: B018
    assert str(cut.value) == "the output ended at its limit of 4 tokens, before its constraint was complete"
    assert cut.value.text == output.outputs[0].text != ""
    [output] = faces.call(face, "generate", "abc", SamplingParams(max_tokens=40, seed=1, stop=[":"]), constraint=Flag)
    with pytest.raises(IncompleteOutputError, match="ended at the stop ':' after"):
        output.parsed  # noqa: B018
    [output] = faces.call(face, "generate", "abc", PARAMS, constraint=Schema(Refused, whitespace="compact"))
    with pytest.raises(InvalidOutputError) as refused:
        output.parsed  # noqa: B018
    assert str(refused.value) == "a: is never right, not 1"
    assert refused.value.text == '{"a":1}'
    [output] = faces.call(face, "generate", "abc", PARAMS, constraint=Schema(Faulty, whitespace="compact"))
    with pytest.raises(OutputError, match="a validator raised KeyError: 1"):
        output.parsed  # noqa: B018


@pytest.mark.parametrize("face", ["LLM", "Client", "AsyncClient"])
def test_each_prompt_may_have_its_own_constraint(faces: FourFaces, face: str) -> None:
    kinds = [Flag, Schema(Point, whitespace="compact"), None, Constraint(choice=["yes"])]
    flag, point, free, choice = faces.call(face, "generate", ["a", "b", "c", "d"], PARAMS, constraint=kinds)
    assert isinstance(flag.parsed, Flag)
    assert isinstance(point.parsed, Point)
    assert free.parsed == free.outputs[0].text
    assert choice.parsed == "yes"


def test_each_of_several_outputs_has_its_value(faces: FourFaces) -> None:
    [output] = faces.llm.generate("a", SamplingParams(n=4, seed=2, max_tokens=60), constraint=Flag, use_tqdm=False)
    assert all(isinstance(each.parsed, Flag) for each in output.outputs)
    assert output.parsed is output.outputs[0].parsed


def test_a_growing_output_has_no_value_yet(faces: FourFaces) -> None:
    engine = faces.by_name["AsyncEngine"]
    assert isinstance(engine, AsyncEngine)

    async def errors() -> list[str]:
        found = []
        async for output in engine.generate("abc", PARAMS, constraint=Flag):
            if output.finished:
                assert isinstance(output.parsed, Flag)
            else:
                with pytest.raises(IncompleteOutputError) as early:
                    output.parsed  # noqa: B018
                found.append(str(early.value))
        return found

    assert set(faces.run(errors())) == {"the output has not ended"}
