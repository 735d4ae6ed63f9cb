"""Work on a `Form`: the languages that are made of one, its parts, and its size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from draftline.structured.errors import Violation
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
from draftline.structured.unique.paths import UniquePaths

REASONING = "reasoning"
"""The name of the tag around reasoning. Names of other tags are JSON pointers, which begin with "/"."""


def children(form: Form) -> tuple[Form, ...]:
    """The forms directly inside."""
    match form:
        case Concatenation(parts):
            return parts
        case Choice(options):
            return options
        case Repetition(body) | Separated(body):
            return (body,)
        case Tag(content=content):
            return (content,)
        case Triggered(tags=tags):
            return tags
        case _:
            return ()


def form_language(form: Form, unique: UniquePaths | None = None) -> Language:
    """The language of a form.

    Args:
        form: the tree.
        unique: see `Language`; the document is what follows the reasoning.
    """
    inside = [
        Violation(leaf.pointer + one.pointer, one.keyword, one.reason)
        for leaf in leaves(form)
        for one in leaf.language.unenforced
    ]
    closed = [leaf.pointer + pointer for leaf in leaves(form) for pointer in leaf.language.closed]
    return Language(None, "", tuple(inside), not_regular(form), tuple(closed), unique, form)


def with_reasoning(language: Language, begin: str, end: str, *, required: bool, is_json: bool) -> Language:
    """Reasoning between two marks, then the texts of a language.

    Args:
        language: the texts behind the end mark.
        begin: the begin mark; it may be empty.
        end: the end mark.
        required: whether the texts cannot come without reasoning. If they can, free text at their beginning has no begin
            mark.
        is_json: whether the texts are JSON documents.
    """
    answer = language.form if language.form is not None else Leaf(language, "", is_json)
    reasoning = Tag(REASONING, begin, Free(), (end,))
    if required:
        return form_language(Concatenation((reasoning, answer)), language.unique)
    return form_language(Concatenation((Repetition(reasoning, 0, 1), _without(begin, answer))), language.unique)


def _without(mark: str, form: Form) -> Form:
    """A form whose free text, where it begins with some, has no such mark."""
    match form:
        case Free(excluded) | Triggered(excluded=excluded):
            return replace(form, excluded=(*excluded, mark))
        case Concatenation((first, *more)):
            return Concatenation((_without(mark, first), *more))
        case Choice(options):
            return Choice(tuple(_without(mark, option) for option in options))
        case _:
            return form


def marks(form: Form) -> Iterator[str]:
    """The texts that stand in the form itself, outside of its leaves: those where special tokens may appear."""
    match form:
        case Literal(text):
            yield text
        case Tag(_, begin, _, ends):
            yield from (begin, *ends)
        case Separated(_, separator):
            yield separator
        case Triggered(triggers):
            yield from triggers
    for child in children(form):
        yield from marks(child)


def leaves(form: Form) -> Iterator[Leaf]:
    """All leaves, from left to right."""
    if isinstance(form, Leaf):
        yield form
    for child in children(form):
        yield from leaves(child)


def size(form: Form) -> int:
    """About how many positions its automaton has, without the insides of leaves: the work that it takes to read texts."""
    match form:
        case Literal(text):
            return 1 + len(text)
        case Free(excluded):
            return _FREE_TEXT * (1 + sum(map(len, excluded)))
        case Separated(body, separator):
            return 1 + len(separator) + size(body)
        case Tag(_, begin, content, ends):
            return 1 + len(begin) + sum(map(len, ends)) + size(content)
        case Repetition(body, low, high):
            return (low + 1 if high is None else high) * size(body)
        case Triggered(triggers, tags, _, _, excluded):
            return _FREE_TEXT * (1 + sum(map(len, (*triggers, *excluded)))) + sum(map(size, tags))
        case _:
            return 1 + sum(map(size, children(form)))


_FREE_TEXT = 16
"""What a character of a trigger costs, compared with one of a literal: 256 moves are computed for it."""


def not_regular(form: Form) -> str | None:
    """Why the texts have no automaton, beginning with "#" and a JSON pointer; None if they have one."""
    for leaf in leaves(form):
        if leaf.language.regex is None:
            reason = leaf.language.not_regular or ""
            inner = reason.removeprefix("#") if reason.startswith("#") else f": {reason}"
            return f"#{leaf.pointer}{inner}"
    return None
