"""Special tokens as marks: which of them may come next, in automata and in grammars, on random walks."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from covering import covering
from examples import examples
from small_vocabulary import legal_tokens, vocabulary
from tag_reference import readings

from draftline.structured.automaton.limits import AutomatonLimits
from draftline.structured.compiled import CompiledConstraint
from draftline.structured.compiler import CompilerLimits, ConstraintCompiler
from draftline.structured.constraint import ConstraintSpec, ReasoningSpec, language
from draftline.structured.matcher import Matcher

NAMES = {"<t>": 0, "<s>": 1, "<e>": 2, "<t>x": 3, "<no>": 4}
"""Special tokens. One's name begins with another's, and one is in no mark."""

WORDS = replace(vocabulary("<", "t>", "a<t", '"a"', "e>", "<e>b", silent=len(NAMES)), special_names=NAMES)
SCHEMA = {"enum": ["a", "<t>", "<e>"]}
NOT_REGULAR: dict[str, Any] = {
    "anyOf": [SCHEMA, {"type": "array", "items": {"$ref": "#"}, "minItems": 1, "maxItems": 1}]
}


def tag(begin: str, schema: Any, end: str) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": {"type": "json_schema", "json_schema": schema}, "end": end}


def forms(schema: Any) -> dict[str, dict[str, Any]]:
    calls = {
        "type": "tags_with_separator",
        "tags": [tag("f<s>", schema, "<e>"), tag("<s>g", schema, "b")],
        "separator": "<t>",
        "at_least_one": True,
    }
    return {
        "triggered": {"type": "triggered_tags", "triggers": ["<t>"], "tags": [tag("<t>a<s>", schema, "b<e>")]},
        "two triggers": {
            "type": "triggered_tags",
            "triggers": ["<t>", "<s>"],
            "tags": [tag("<t>x", schema, "<e>"), tag("<t>y", schema, "<e>"), tag("<s>", schema, "<e><e>")],
            "excludes": ["<e>"],
        },
        "separated": calls,
        "section": {
            "type": "triggered_tags",
            "triggers": ["<t>x["],
            "tags": [{"type": "tag", "begin": "<t>x[", "content": calls, "end": "]"}],
            "stop_after_first": True,
        },
    }


REASONINGS = (
    None,
    ReasoningSpec("<s>", "<e>", limited=False),
    ReasoningSpec("<s>", "<e>", limited=False, required=False),
    ReasoningSpec("", "<e>", limited=False),
)


class HostCompiler(ConstraintCompiler):
    """No tables are ever built: outputs with an automaton stay on the host."""

    def _do_later(self, work: Any) -> bool:
        return True


@pytest.fixture(scope="module")
def compilers() -> Iterator[tuple[ConstraintCompiler, ...]]:
    """One that prefers automata, one that has no room for them, and one that walks them on the host."""
    limits = AutomatonLimits()
    all_of_them = (
        ConstraintCompiler(WORDS),
        ConstraintCompiler(WORDS, CompilerLimits(automaton=replace(limits, parts_bytes=0))),
        HostCompiler(WORDS, CompilerLimits(automaton=replace(limits, awaited_states=0))),
    )
    yield all_of_them
    for compiler in all_of_them:
        compiler.close()


def legal(matcher: Matcher) -> set[int]:
    return legal_tokens(matcher, WORDS)


@pytest.mark.parametrize(
    ("schema", "name", "reasoning"),
    covering(
        {"regular": SCHEMA, "not regular": NOT_REGULAR},
        {name: name for name in forms(SCHEMA)},
        {str(reasoning): reasoning for reasoning in REASONINGS},
    ),
)
def test_walks(
    compilers: tuple[ConstraintCompiler, ...], name: str, schema: Any, reasoning: ReasoningSpec | None
) -> None:
    source = json.dumps({"type": "structural_tag", "format": forms(schema)[name]})
    spec = ConstraintSpec("structural_tag", source, whitespace="compact", reasoning=reasoning)
    whole, grammar, host = (compiler.compile(spec) for compiler in compilers)
    assert grammar.report.backend == "grammar"
    assert whole.report.backend == host.report.backend == ("automaton" if schema is SCHEMA else "grammar")
    assert host.report.runs_on == "host"
    assert set(grammar.marking) == set(whole.marking) == set(host.marking) <= set(NAMES.values()) - {NAMES["<no>"]}
    form = language(spec).form
    assert form is not None
    total = 0
    for number in range(examples(12)):
        draw = random.Random(number)
        took = 0
        matchers = [one.begin().matcher for one in (whole, grammar, host)]
        text = b""
        for _ in range(60):
            masks = [legal(matcher) for matcher in matchers]
            assert masks[0] == masks[1] == masks[2], text
            ends = masks[0] & WORDS.eos_ids
            assert matchers[0].complete == bool(ends), text
            # A token that begins a trigger has to go on, but its name alone is also free text.
            if schema is SCHEMA and (matchers[0].complete or not took):
                assert matchers[0].complete == whole_text(form, text), text
            special = sorted(masks[0] & set(whole.marking))
            ordinary = sorted(masks[0] - WORDS.eos_ids - set(special))
            if not special and not ordinary:
                break
            token = draw.choice(special if special and (not ordinary or draw.random() < 0.5) else ordinary)
            assert all(matcher.advance(token) for matcher in matchers)
            took += token in whole.marking
            text += whole.marking.get(token) or WORDS.tokens[token]
        assert whole.tags is not None
        walk = whole.tags.begin()
        if matchers[0].complete and schema is SCHEMA:
            walk.feed(text.decode())
            assert tuple(walk.spans) in [
                tuple(sorted(way, key=lambda span: span.end)) for way in readings(form, text.decode())
            ]
        total += took
    assert total


def test_marks_come_from_the_folder_of_tables(tmp_path: Path) -> None:
    spec = ConstraintSpec(
        "structural_tag", json.dumps({"type": "structural_tag", "format": forms(SCHEMA)["separated"]})
    )
    made: list[CompiledConstraint] = []
    for words in (WORDS, WORDS, replace(WORDS, special_names={"<t>": 1, "<e>": 0})):
        compiler = ConstraintCompiler(words, cache_folder=tmp_path)
        made.append(compiler.compile(spec))
        assert bool(compiler._workers._processes._idle) == (len(made) != 2)
        compiler._background.submit("", lambda _: None).join().result()
        compiler.close()
    first, found, other = made
    assert len(list(tmp_path.glob("*.tables"))) == 2
    assert found.marking == first.marking == {0: b"<t>", 1: b"<s>", 2: b"<e>"}
    assert other.marking == {1: b"<t>", 0: b"<e>"}
    assert found.tags is not None
    walk = found.tags.begin()
    walk.feed('f<s>"a"<e><t><s>g"a"b')
    assert len(walk.spans) == 2


def whole_text(form: Any, text: bytes) -> bool:
    """Whether a text is allowed by definition."""
    try:
        return bool(readings(form, text.decode()))
    except UnicodeDecodeError:
        return False
