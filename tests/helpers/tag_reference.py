"""What a structural tag allows, by definition: a slow walk over characters that tries every split of a text."""

from __future__ import annotations

import re
from collections.abc import Iterator

from draftline.structured.language import (
    Choice,
    Concatenation,
    Form,
    Free,
    Leaf,
    Literal,
    Repetition,
    Separated,
    Tag,
    Triggered,
)
from draftline.structured.tags.span import TagSpan

Reading = tuple[int, tuple[TagSpan, ...]]
"""Where a part of a text ends, and the tags in it."""


def readings(form: Form, text: str) -> list[tuple[TagSpan, ...]]:
    """The tags of each way to read the whole text; none if the form does not allow it."""
    return list(dict.fromkeys(spans for end, spans in _read(form, text, 0) if end == len(text)))


def _read(form: Form, text: str, start: int) -> Iterator[Reading]:
    rest = range(start, len(text) + 1)
    match form:
        case Literal(wanted):
            if text.startswith(wanted, start):
                yield start + len(wanted), ()
        case Leaf(language):
            assert language.regex is not None
            yield from ((end, ()) for end in rest if re.fullmatch(language.regex, text[start:end], re.DOTALL))
        case Free(excluded, not_first):
            free = [end for end in rest if end == start or text[start] not in not_first]
            yield from ((end, ()) for end in free if not any(one in text[start:end] for one in excluded))
        case Concatenation(parts):
            yield from _one_after_the_other(parts, text, start)
        case Choice(options):
            for option in options:
                yield from _read(option, text, start)
        case Repetition(body, low, high):
            most = len(text) - start + low if high is None else high
            for count in range(low, most + 1):
                yield from _one_after_the_other((body,) * count, text, start)
        case Separated(body, separator):
            for count in range(len(text) - start + 1):
                more = (Literal(separator), body) * count
                yield from _one_after_the_other((body, *more), text, start)
        case Tag():
            if text.startswith(form.begin, start):
                yield from _tag(form, text, start)
        case Triggered():
            yield from _triggered(form, text, start)


def _one_after_the_other(parts: tuple[Form, ...], text: str, start: int) -> Iterator[Reading]:
    if not parts:
        yield start, ()
        return
    for end, spans in dict.fromkeys(_read(parts[0], text, start)):
        for last, more in _one_after_the_other(parts[1:], text, end):
            yield last, (*spans, *more)


def _tag(tag: Tag, text: str, start: int) -> Iterator[Reading]:
    """The readings of a tag whose begin mark is there: those that end first."""
    content = start + len(tag.begin)
    found = [
        (end + len(mark), end, spans)
        for end, spans in dict.fromkeys(_read(tag.content, text, content))
        for mark in tag.ends
        if text.startswith(mark, end)
    ]
    first = min((end for end, _, _ in found), default=None)
    for end, content_end, spans in found:
        if end == first:
            yield end, (*spans, TagSpan(tag.name, tag.begin, start, content, content_end, end))


def _triggered(form: Triggered, text: str, start: int, *, first: bool = True) -> Iterator[Reading]:
    if first and form.at_least_one:
        for tag in form.tags:
            if text.startswith(tag.begin, start):
                yield from _and_on(form, tag, text, start)
        return
    for end in range(start, len(text) + 1):
        # The text up to here is free: no trigger has appeared in it, and nothing that is excluded.
        if any(one in text[start:end] for one in form.excluded):
            return
        seen = [one for one in form.triggers if text[start:end].endswith(one)]
        if seen:
            trigger = max(seen, key=len)
            begin = end - len(trigger)
            for tag in form.tags:
                if tag.begin.startswith(trigger) and text.startswith(tag.begin, begin):
                    yield from _and_on(form, tag, text, begin)
            return
        yield end, ()


def _and_on(form: Triggered, tag: Tag, text: str, begin: int) -> Iterator[Reading]:
    for end, spans in _tag(tag, text, begin):
        if form.stop_after_first:
            yield end, spans
        else:
            for last, more in _triggered(form, text, end, first=False):
                yield last, (*spans, *more)
