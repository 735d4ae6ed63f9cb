"""XGrammar's structural tags: JSON that vLLM and SGLang take as ``structural_tag``, read as a `Form`.

The formats are described at https://xgrammar.mlc.ai/docs/structural_tag/structural_tag.html. What a form cannot say
exactly is refused by name.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal

from draftline.structured.errors import InvalidConstraintError, UnsupportedConstraintError, Violation
from draftline.structured.language import (
    Choice,
    Concatenation,
    Form,
    Free,
    Language,
    Leaf,
    Repetition,
    Separated,
    Tag,
    Triggered,
)
from draftline.structured.language import Literal as LiteralForm
from draftline.structured.members import RepeatedMemberError, unique_members
from draftline.structured.tags.form import size

MAX_BYTES: Final = 4 << 20
"""The largest structural tag."""

MAX_SIZE: Final = 200_000
"""The largest structural tag with repetitions written out, in characters of its marks; those of triggers weigh more."""

_MAX_NESTING: Final = 64
_MAX_COUNT: Final = 1000

InnerLanguage = Callable[[Literal["json_schema", "regex", "grammar"], str, bool], Language]
"""The language of another constraint, by its kind and source, and whether its objects are closed in any case."""


def read_structural_tag(source: str, inner: InnerLanguage) -> Form:
    """Read a structural tag: with "format", or in the old form with "structures" and "triggers".

    Args:
        source: its JSON text.
        inner: gives the languages of the constraints inside it.

    Raises:
        InvalidConstraintError: it is malformed or too large. Behind a JSON pointer, the error says what is wrong.
        UnsupportedConstraintError: parts of it cannot be enforced exactly.
    """
    if len(source.encode()) > MAX_BYTES:
        raise InvalidConstraintError(f"is larger than {MAX_BYTES} bytes")
    try:
        value = json.loads(source, object_pairs_hook=unique_members)
    except RepeatedMemberError as error:
        raise InvalidConstraintError(str(error)) from None
    except (ValueError, RecursionError) as error:
        raise InvalidConstraintError(f"is not JSON: {error}") from None
    reader = _Reader(inner)
    form = reader.read(value)
    if reader.violations:
        raise UnsupportedConstraintError(reader.violations)
    if size(form) > MAX_SIZE:
        raise InvalidConstraintError(f"has more than {MAX_SIZE} characters in its marks, with repetitions written out")
    return form


class _Members:
    """The members of a JSON object, each to be taken once. Those in ``left`` were not."""

    def __init__(self, value: object, pointer: str) -> None:
        if not isinstance(value, dict):
            raise _invalid(pointer, "has to be an object")
        self.left = dict(value)
        self.pointer = pointer

    def at(self, name: str) -> str:
        """The pointer of a member."""
        return f"{self.pointer}/{name}"

    def take(self, name: str, default: Any = ...) -> Any:
        """A member's value."""
        if name not in self.left and default is ...:
            raise _invalid(self.pointer, f'has no "{name}"')
        return self.left.pop(name, default)

    def text(self, name: str, default: Any = ...) -> str:
        """A string."""
        return _text(self.take(name, default), self.at(name))

    def texts(self, name: str, *, empty: bool) -> tuple[str, ...]:
        """A list of strings that are not empty; ``empty``: the list may be empty, and left out."""
        values = _list(self.take(name, [] if empty else ...), self.at(name), empty=empty)
        texts = tuple(_text(value, f"{self.at(name)}/{index}") for index, value in enumerate(values))
        for index, text in enumerate(texts):
            if not text:
                raise _invalid(f"{self.at(name)}/{index}", "is empty")
        return texts

    def flag(self, name: str) -> bool:
        """A boolean; false by default."""
        value = self.take(name, False)
        if not isinstance(value, bool):
            raise _invalid(self.at(name), "has to be true or false")
        return value


class _Reader:
    def __init__(self, inner: InnerLanguage) -> None:
        self.violations: list[Violation] = []
        self._inner = inner
        self._depth = 0

    def read(self, value: object) -> Form:
        members = _Members(value, "")
        kind = members.take("type", "structural_tag")
        if kind != "structural_tag":
            raise _invalid("/type", 'has to be "structural_tag"')
        if "structures" in members.left or "triggers" in members.left:
            form = self._old(members)
        else:
            form = self._format(members.take("format"), "/format")
        self._nothing_else(members)
        return form

    def _old(self, members: _Members) -> Form:
        tags: list[Tag] = []
        for index, value in enumerate(_list(members.take("structures"), "/structures", empty=False)):
            structure = _Members(value, f"/structures/{index}")
            schema = structure.take("schema")
            content = self._schema(schema, structure.at("schema"))
            tag = Tag(structure.pointer, structure.text("begin"), content, (structure.text("end"),))
            self._nothing_else(structure)
            tags.append(tag)
        triggers = members.texts("triggers", empty=False)
        return self._dispatch(triggers, tags, members, at_least_one=False, stop_after_first=False, excluded=())

    def _format(self, value: object, pointer: str) -> Form:
        members = _Members(value, pointer)
        kind = members.text("type")
        read = _FORMATS.get(kind)
        if read is None:
            if kind not in _REFUSED:
                raise _invalid(f"{pointer}/type", f'"{kind}" is not a format')
            self.violations.append(Violation(pointer, kind, _REFUSED[kind]))
            return Free()
        self._depth += 1
        if self._depth > _MAX_NESTING:
            raise _invalid(pointer, f"formats nest deeper than {_MAX_NESTING}")
        form = read(self, members)
        self._depth -= 1
        self._nothing_else(members)
        return form

    def _nothing_else(self, members: _Members) -> None:
        for name, value in members.left.items():
            known = _REFUSED_MEMBERS.get(name)
            if known is None:
                raise _invalid(members.pointer, f'has an unknown member "{name}"')
            harmless, reason = known
            if value not in harmless:
                self.violations.append(Violation(members.at(name), name, reason))

    def _elements(self, members: _Members) -> tuple[Form, ...]:
        at = members.at("elements")
        values = _list(members.take("elements"), at, empty=False)
        return tuple(self._format(value, f"{at}/{index}") for index, value in enumerate(values))

    def _const_string(self, members: _Members) -> Form:
        return LiteralForm(members.text("value"))

    def _any_text(self, members: _Members) -> Form:
        not_first = members.text("not_first", "")
        if not not_first.isascii():
            raise _invalid(members.at("not_first"), "has a character that is not ASCII")
        return Free(members.texts("excludes", empty=True), not_first)

    def _json_schema(self, members: _Members) -> Form:
        schema, close = members.take("json_schema"), members.flag("close_objects")
        return self._schema(schema, members.at("json_schema"), close_objects=close)

    def _schema(self, schema: object, pointer: str, *, close_objects: bool = False) -> Form:
        source = schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False)
        return self._leaf("json_schema", source, pointer, close_objects=close_objects)

    def _regex(self, members: _Members) -> Form:
        return self._leaf("regex", members.text("pattern"), members.at("pattern"))

    def _grammar(self, members: _Members) -> Form:
        return self._leaf("grammar", members.text("grammar"), members.at("grammar"))

    def _leaf(
        self,
        kind: Literal["json_schema", "regex", "grammar"],
        source: str,
        pointer: str,
        *,
        close_objects: bool = False,
    ) -> Form:
        try:
            language = self._inner(kind, source, close_objects)
        except UnsupportedConstraintError as error:
            self.violations += [Violation(pointer + one.pointer, one.keyword, one.reason) for one in error.violations]
            return Free()
        except InvalidConstraintError as error:
            # An error inside a schema begins with its JSON pointer.
            message = str(error)
            inside = re.match(r"/\S*(?=: )", message)
            raise InvalidConstraintError(f"{pointer}{message}" if inside else f"{pointer}: {message}") from None
        return Leaf(language, pointer, kind == "json_schema")

    def _sequence(self, members: _Members) -> Form:
        return Concatenation(self._elements(members))

    def _or(self, members: _Members) -> Form:
        options = self._elements(members)
        _check_apart([option for option in options if isinstance(option, Tag)])
        return Choice(options)

    def _content(self, members: _Members) -> Form:
        return self._format(members.take("content"), members.at("content"))

    def _repeat(self, members: _Members) -> Form:
        low, high = members.take("min"), members.take("max")
        for name, count in (("min", low), ("max", high)):
            if type(count) is not int or not -(name == "max") <= count <= _MAX_COUNT:
                raise _invalid(members.at(name), f"has to be an integer of at most {_MAX_COUNT}")
        if 0 <= high < low:
            raise _invalid(members.at("max"), "is below min")
        return Repetition(self._content(members), low, None if high < 0 else high)

    def _tag(self, members: _Members) -> Tag:
        begin, end = members.take("begin"), members.take("end")
        for name, mark in (("begin", begin), ("end", end)):
            if isinstance(mark, dict) and mark.get("type") == "token":
                self.violations.append(Violation(members.at(name), "token", _REFUSED["token"]))
        content = self._content(members)
        if self.violations:
            begin, end = ("" if isinstance(mark, dict) else mark for mark in (begin, end))
        marks = _list(end, members.at("end"), empty=False) if isinstance(end, list) else [end]
        ends = tuple(_text(mark, members.at("end")) for mark in marks)
        return Tag(members.pointer, _text(begin, members.at("begin")), content, tuple(dict.fromkeys(ends)))

    def _tags(self, members: _Members) -> list[Tag]:
        tags: list[Tag] = []
        for index, value in enumerate(_list(members.take("tags"), members.at("tags"), empty=False)):
            tag = _Members(value, f"{members.at('tags')}/{index}")
            if tag.take("type", "tag") != "tag":
                raise _invalid(tag.at("type"), 'has to be "tag"')
            tags.append(self._tag(tag))
            self._nothing_else(tag)
        return tags

    def _triggered_tags(self, members: _Members) -> Form:
        return self._dispatch(
            members.texts("triggers", empty=False),
            self._tags(members),
            members,
            at_least_one=members.flag("at_least_one"),
            stop_after_first=members.flag("stop_after_first"),
            excluded=members.texts("excludes", empty=True),
        )

    def _dispatch(
        self,
        triggers: tuple[str, ...],
        tags: Iterable[Tag],
        members: _Members,
        *,
        at_least_one: bool,
        stop_after_first: bool,
        excluded: tuple[str, ...],
    ) -> Form:
        tags = tuple(tags)
        if not self.violations:
            _check_apart(tags)
            for tag in tags:
                if not tag.begin.startswith(triggers):
                    raise _invalid(f"{tag.name}/begin", "begins with none of the triggers")
            for index, trigger in enumerate(triggers):
                if not any(tag.begin.startswith(trigger) for tag in tags):
                    raise _invalid(f"{members.at('triggers')}/{index}", "no tag begins with it")
        return Triggered(tuple(dict.fromkeys(triggers)), tags, at_least_one, stop_after_first, excluded)

    def _tags_with_separator(self, members: _Members) -> Form:
        options = self._tags(members)
        _check_apart(options)
        tags = Choice(tuple(options))
        separator = members.text("separator")
        required = members.flag("at_least_one")
        some = tags if members.flag("stop_after_first") else Separated(tags, separator)
        return some if required else Repetition(some, 0, 1)


def _check_apart(tags: Iterable[Tag]) -> None:
    """Check that the begin marks tell the tags apart."""
    ordered = sorted(tags, key=lambda tag: tag.begin)
    for one, other in itertools.pairwise(ordered):
        if other.begin.startswith(one.begin):
            raise _invalid(f"{other.name}/begin", f"begins with the begin mark of {one.name}: nothing tells them apart")


def _invalid(pointer: str, problem: str) -> InvalidConstraintError:
    return InvalidConstraintError(f"{pointer}: {problem}" if pointer else problem)


def _text(value: object, pointer: str) -> str:
    if not isinstance(value, str):
        raise _invalid(pointer, "has to be a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _invalid(pointer, "has a lone surrogate, which no text has") from None
    return value


def _list(value: object, pointer: str, *, empty: bool) -> list[Any]:
    if not isinstance(value, list) or not (value or empty):
        raise _invalid(pointer, "has to be a list" if empty else "has to be a list that is not empty")
    return value


_FORMATS: Final[dict[str, Callable[[_Reader, _Members], Form]]] = {
    "const_string": _Reader._const_string,
    "any_text": _Reader._any_text,
    "json_schema": _Reader._json_schema,
    "regex": _Reader._regex,
    "grammar": _Reader._grammar,
    "sequence": _Reader._sequence,
    "or": _Reader._or,
    "optional": lambda reader, members: Repetition(reader._content(members), 0, 1),
    "plus": lambda reader, members: Repetition(reader._content(members), 1, None),
    "star": lambda reader, members: Repetition(reader._content(members), 0, None),
    "repeat": _Reader._repeat,
    "tag": _Reader._tag,
    "triggered_tags": _Reader._triggered_tags,
    "tags_with_separator": _Reader._tags_with_separator,
}

_BY_TOKENS: Final = "marks are texts here, not tokens"
_REFUSED: Final = {
    "token": _BY_TOKENS,
    "exclude_token": _BY_TOKENS,
    "any_tokens": _BY_TOKENS,
    "token_triggered_tags": _BY_TOKENS,
    "token_dispatch": _BY_TOKENS,
    "dispatch": "use triggered_tags, whose tags have ends",
    "qwen_xml_parameter": "schemas are enforced as JSON only",
}
"""XGrammar's formats that are refused, with the reasons."""

_REFUSED_MEMBERS: Final[dict[str, tuple[tuple[object, ...], str]]] = {
    "style": (("json",), "schemas are enforced as JSON only"),
    "any_order": ((False,), "it allows members to be missing or to repeat"),
    "max_tokens": ((None,), "only reasoning has a limit of its own: use the reasoning option of the constraint"),
    "max_chars": ((None,), "free text has no limit of its own"),
    "excludes": (([],), "texts are excluded from any_text and triggered_tags only"),
}
"""XGrammar's members that are refused unless they have a value that changes nothing, with the reasons."""
