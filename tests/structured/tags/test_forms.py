"""Automata, grammars and readers of forms against the definition, on generated forms and texts."""

from __future__ import annotations

import gc
import json
import random
import tracemalloc

import pytest
from byte_automata import accepts
from hypothesis import assume, given, seed, settings
from hypothesis import strategies as st
from tag_reference import readings
from walk import Walker

from draftline.structured.automaton.byte_automaton import ByteAutomaton
from draftline.structured.errors import InvalidConstraintError, UnsupportedConstraintError
from draftline.structured.grammar.lark import regex_grammar
from draftline.structured.language import (
    Choice,
    Concatenation,
    Form,
    Free,
    Language,
    Leaf,
    Literal,
    Repetition,
    Separated,
    Tag,
    Triggered,
)
from draftline.structured.tags.determinize import determinize
from draftline.structured.tags.lark import tag_grammar
from draftline.structured.tags.nfa_builder import NfaBuilder
from draftline.structured.tags.stored import from_json, to_json
from draftline.structured.tags.walk import TagReader

MARKS = st.text("ab<é", min_size=1, max_size=3)


def leaf(regex: str) -> Leaf:
    return Leaf(Language(regex, regex_grammar(regex)), "", is_json=False)


CONTENTS = st.one_of(
    st.sampled_from(["b*", "[ab]+", "a|ab", "(aé)*", "<?b", "b<a|b"]).map(leaf),
    st.builds(lambda texts, first: Free(tuple(texts), first), st.lists(MARKS, max_size=1), st.sampled_from(["", "a<"])),
    MARKS.map(Literal),
)
"""What may stand inside a tag."""


def _tags(contents: st.SearchStrategy[Form], begins: st.SearchStrategy[str] = MARKS) -> st.SearchStrategy[Tag]:
    ends = st.lists(MARKS, min_size=1, max_size=2, unique=True).map(tuple)
    return st.builds(Tag, st.sampled_from(["/0", "/1", "/2"]), begins, contents, ends)


@st.composite
def triggered(draw: st.DrawFn, contents: st.SearchStrategy[Form] = CONTENTS) -> Triggered:
    """Triggers that may be prefixes, or parts, of each other, and may be excluded."""
    triggers = draw(st.lists(MARKS, min_size=1, max_size=2, unique=True))
    tags: list[Tag] = []
    for trigger in triggers:
        rests = draw(st.lists(st.text("ab<", max_size=2), min_size=1, max_size=2, unique=True))
        for rest in rests:
            ends = tuple(draw(st.lists(MARKS, min_size=1, max_size=2, unique=True)))
            tags.append(Tag(f"/{len(tags)}", trigger + rest, draw(contents), ends))
    tags = [tag for tag in tags if not any(tag.begin.startswith(one.begin) for one in tags if one is not tag)]
    assume(tags)
    triggers = [trigger for trigger in triggers if any(tag.begin.startswith(trigger) for tag in tags)]
    excluded = draw(st.lists(MARKS, max_size=1))
    return Triggered(tuple(triggers), tuple(tags), draw(st.booleans()), draw(st.booleans()), tuple(excluded))


FORMS = st.one_of(
    triggered(),
    _tags(CONTENTS),
    _tags(triggered()),
    st.tuples(_tags(CONTENTS), triggered()).map(Concatenation),
    st.tuples(MARKS.map(Literal), triggered()).map(Concatenation),
    st.builds(
        lambda tag, mark: Concatenation((tag, Repetition(Concatenation((Literal(mark), tag)), 0, None))),
        _tags(CONTENTS),
        MARKS,
    ),
    st.builds(Separated, _tags(CONTENTS), MARKS),
    _tags(st.builds(Separated, _tags(CONTENTS), MARKS)),
    _tags(CONTENTS).map(lambda tag: Concatenation((Repetition(tag, 0, 1), Free((tag.begin,))))),
    st.lists(_tags(CONTENTS), min_size=2, max_size=2, unique_by=lambda tag: tag.begin[0]).map(
        lambda tags: Choice(tuple(tags))
    ),
)


def texts_near(form: Form, source: random.Random, count: int) -> list[str]:
    """Texts of the marks of a form, so that many of them match or nearly do."""
    pieces = ["a", "b", "<", "é", "ab", *_marks(form)]
    return ["".join(source.choices(pieces, k=source.randrange(7))) for _ in range(count)]


def _marks(form: Form) -> list[str]:
    match form:
        case Literal(text):
            return [text]
        case Concatenation(forms) | Choice(forms):
            return [mark for part in forms for mark in _marks(part)]
        case Repetition(body):
            return _marks(body)
        case Separated(body, separator):
            return [separator, *_marks(body)]
        case Tag(_, begin, content, ends):
            return [begin, *ends, *_marks(content), begin + "b" + ends[0]]
        case Triggered(triggers, tags):
            return [*triggers, *(mark for tag in tags for mark in _marks(tag))]
        case _:
            return []


def check(form: Form, texts: list[str]) -> None:
    try:
        automaton: ByteAutomaton | None = determinize(NfaBuilder(10_000).build(form), 10_000)
    except InvalidConstraintError:
        automaton = None  # nothing matches: a trigger is excluded, for example
    try:
        grammar = Walker.of_grammar(tag_grammar(form))
    except (UnsupportedConstraintError, AssertionError):
        grammar = None  # it says so; or nothing matches
    reader = TagReader(from_json(json.loads(json.dumps(to_json(form)))))
    for text in texts:
        ways = readings(form, text)
        assert (automaton is not None and accepts(automaton, text)) == bool(ways), (form, text, ways)
        if grammar is not None:
            assert grammar.accepts(text) == bool(ways), (form, text, ways)
        if len(ways) == 1:
            walk = reader.begin()
            walk.feed(text)
            assert tuple(walk.spans) == tuple(sorted(ways[0], key=lambda span: span.end)), (form, text)


@seed(1)
@settings(max_examples=60, deadline=None)
@given(FORMS, st.integers(0, 2**32))
def test_generated_forms_mean_what_the_definition_says(form: Form, number: int) -> None:
    check(form, texts_near(form, random.Random(number), 40))


@pytest.mark.slow
@seed(2)
@settings(max_examples=1500, deadline=None)
@given(FORMS, st.integers(0, 2**32))
def test_many_generated_forms_mean_what_the_definition_says(form: Form, number: int) -> None:
    check(form, texts_near(form, random.Random(number), 60))


@pytest.mark.parametrize(
    "form",
    [
        Literal("ab" * 5000),
        Repetition(Literal("abcd"), 0, 1000),
        Triggered(("<f",), tuple(Tag("", f"<f{i}>", Literal("x"), ("</f>",)) for i in range(100)), False, False, ()),
    ],
    ids=["literal", "repeat", "triggered"],
)
def test_a_reader_knows_its_size(form: Form) -> None:
    gc.freeze()  # collecting what other tests have left takes most of a second
    tracemalloc.start()
    reader = TagReader(form)
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size / 2 < reader.nbytes < 2 * size
