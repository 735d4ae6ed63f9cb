"""Constraints with tags and reasoning, requests that have them, and what their outputs have to be by definition."""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from typing import Any

import jsonschema_rs

from draftline.engine.outputs import CompletionOutput, FinishReason
from draftline.engine.params import Constraint, Reasoning, SamplingParams

CLOSED: dict[str, Any] = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}, "k": {"enum": ["é", "b"]}},
    "required": ["n"],
    "additionalProperties": False,
}
SHORT: dict[str, Any] = {"enum": ["x", 7, None]}
OPEN: dict[str, Any] = {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}
"""It recurses, so no automaton enforces it."""

REASONINGS = (None, Reasoning(max_tokens=12, begin="<r>", end="</r>"), Reasoning(max_tokens=9, begin="", end="é."))


def tag(begin: str, schema: dict[str, Any], *ends: str) -> dict[str, Any]:
    """A tag around JSON."""
    content = {"type": "json_schema", "json_schema": schema}
    return {"type": "tag", "begin": begin, "content": content, "end": list(ends)}


def _triggered(tags: list[dict[str, Any]], *triggers: str, **options: Any) -> dict[str, Any]:
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags, **options}


FORMATS: dict[str, dict[str, Any]] = {
    # One trigger is the beginning of another, and they end in different ways.
    "triggered": _triggered([tag("<a>", CLOSED, "</a>"), tag("<ab", SHORT, "!", "</")], "<a", "<ab"),
    "required": _triggered([tag("<a>", CLOSED, "</a>")], "<", at_least_one=True),
    "once": _triggered([tag("<a>", SHORT, "</a>"), tag("<é>", CLOSED, "é")], "<", stop_after_first=True),
    "excluded": _triggered([tag("<a>", SHORT, ">")], "<a", excludes=["<a>x", "z", "<<"]),
    "open": _triggered([tag("<a>", OPEN, "</a>"), tag("<b>", SHORT, "</b>")], "<"),
    "required open": _triggered([tag("<a>", OPEN, ".")], "<a", at_least_one=True, stop_after_first=True),
    "list": {
        "type": "tags_with_separator",
        "tags": [tag("<a>", SHORT, "</a>"), tag("<b>", CLOSED, "</b>")],
        "separator": ", ",
        "at_least_one": True,
    },
}

CONSTRAINTS: list[dict[str, Any]] = [
    {"json_schema": json.dumps(CLOSED)},
    {"json_schema": json.dumps(OPEN)},
    {"regex": "(ab|é){2,4}"},
    {"choice": ("yes", "no")},
    *({"structural_tag": {"type": "structural_tag", "format": one}} for one in FORMATS.values()),
    {},
]


@dataclass(frozen=True, slots=True)
class TagCase:
    """A request, and what is inside its tags.

    Attributes:
        prompt: its tokens.
        sampling: its sampling.
        constraint: its constraint.
    """

    prompt: tuple[int, ...]
    sampling: SamplingParams
    constraint: Constraint


def tag_case(number: int) -> TagCase:
    """A random request."""
    source = random.Random(number)
    kind = source.choice(CONSTRAINTS)
    reasoning = source.choice(REASONINGS if kind else REASONINGS[1:])
    open_ended = any(name in json.dumps(kind) for name in ('"$ref"', '\\"$ref\\"'))
    whitespace = source.choice(["compact", "spaced"])
    constraint = Constraint(
        **kind,
        reasoning=reasoning,
        **({"whitespace": whitespace} if kind.keys() & {"json_schema", "structural_tag"} else {}),
        close_within_budget=not open_ended and source.random() < 0.5,
    )
    sampling = SamplingParams(
        temperature=source.choice([0.0, 0.8, 1.2]),
        max_tokens=source.randrange(50, 90),
        n=source.choice([1, 1, 3]),
        seed=number,
        stop=("q",) if source.random() < 0.2 and not constraint.close_within_budget else (),
        # The random model would hardly begin a tag.
        logit_bias={ord("<"): source.choice([0, 6]), ord("a"): source.choice([0, 5])},
    )
    return TagCase(tuple(source.randrange(1, 255) for _ in range(source.randrange(1, 6))), sampling, constraint)


def assert_right(output: CompletionOutput, constraint: Constraint) -> None:
    """Check an output of a model whose tokens are bytes: that it is what it says, and what the constraint allows."""
    finished = output.finished
    assert finished is not None
    text, complete = output.text, finished.constraint_complete
    if finished.finish_reason is FinishReason.EOS or constraint.close_within_budget:
        assert complete
    for span in finished.tags:
        assert text[span.start : span.content_start] == span.begin
    answer = text
    if constraint.reasoning is not None:
        answer = _behind_reasoning(output, constraint.reasoning)
        if finished.reasoning is None:
            assert not complete
            return
    if constraint.structural_tag is not None:
        offset = len(text) - len(answer)
        spans = [
            (span.begin, span.start - offset, span.content_start - offset, span.content_end - offset, span.end - offset)
            for span in finished.tags
            if span.name != "reasoning"
        ]
        _assert_tags(json.loads(constraint.structural_tag)["format"], answer, spans, complete=bool(complete))
    elif complete:
        _assert_whole(constraint, answer)
        assert finished.json_valid == (True if constraint.is_json else None)


def _behind_reasoning(output: CompletionOutput, reasoning: Reasoning) -> str:
    """Check the reasoning; the text behind it."""
    finished, text = output.finished, output.text
    assert finished is not None
    begin = text[: len(reasoning.begin)]
    assert reasoning.begin.startswith(begin)
    end = text.find(reasoning.end, len(begin))
    span = finished.reasoning
    if span is None:
        assert end < 0
        assert reasoning.max_tokens is not None
        assert finished.usage.completion_tokens <= reasoning.max_tokens
        assert finished.finish_reason is FinishReason.STOP
        return ""
    assert (span.start, span.content_start, span.content_end) == (0, len(reasoning.begin), end)
    assert span.end == end + len(reasoning.end)
    assert reasoning.max_tokens is not None
    assert len(text[: span.end].encode()) <= reasoning.max_tokens
    assert output.reasoning == text[len(reasoning.begin) : end]
    assert output.answer == text[span.end :]
    return output.answer


def _assert_whole(constraint: Constraint, answer: str) -> None:
    if constraint.json_schema is not None:
        assert jsonschema_rs.is_valid(json.loads(constraint.json_schema), json.loads(answer))
    if constraint.regex is not None:
        assert re.fullmatch(constraint.regex, answer)
    if constraint.choice is not None:
        assert answer in constraint.choice


_Span = tuple[str, int, int, int, int]


def _assert_tags(form: dict[str, Any], text: str, spans: list[_Span], *, complete: bool) -> None:
    """Check the tags of a text, and what is between them."""
    tags = {one["begin"]: one for one in form["tags"]}
    at = 0
    outside: list[str] = []
    for begin, start, content_start, content_end, end in spans:
        outside.append(text[at:start])
        one = tags[begin]
        content = text[content_start:content_end]
        assert jsonschema_rs.is_valid(one["content"]["json_schema"], json.loads(content)), content
        assert text[content_end:end] in one["end"]
        at = end
    rest = text[at:]
    if form["type"] == "tags_with_separator":
        assert outside == ([""] + [form["separator"]] * (len(spans) - 1) if spans else [])
        assert not complete or (spans and not rest)
        return
    free = [*outside, rest] if complete else outside
    for index, between in enumerate(free):
        assert not any(trigger in between for trigger in form["triggers"]), between
        assert not any(one in between for one in form.get("excludes", ())), between
        assert not (form.get("at_least_one") and index == 0 and between)
    if form.get("at_least_one") and complete:
        assert spans
    if form.get("stop_after_first"):
        assert len(spans) <= 1
        assert not (spans and rest)
