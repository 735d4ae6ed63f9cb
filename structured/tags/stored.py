"""Forms as plain JSON values: what `walk` needs to find tags in texts, for the folder of tables.

The insides of leaves are in the tables. Only a leaf that is no JSON keeps its grammar, since its end is found with it.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

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

_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Literal, Leaf, Free, Concatenation, Choice, Repetition, Separated, Tag, Triggered)
}


def to_json(form: Form) -> dict[str, Any]:
    """A JSON object that stands for a form."""
    return {"kind": type(form).__name__} | {one.name: _value(form, getattr(form, one.name)) for one in fields(form)}


def from_json(stored: dict[str, Any]) -> Form:
    """The form that an object stands for. Raises KeyError, TypeError or ValueError if it is none."""
    values = {name: _part(value) for name, value in stored.items() if name != "kind"}
    form: Form = _KINDS[stored["kind"]](**values)
    return form


def _value(form: Form, value: Any) -> Any:
    match value:
        case Language():
            return {"kind": "Language", "grammar": "" if isinstance(form, Leaf) and form.is_json else value.grammar}
        case tuple():
            return [_value(form, one) for one in value]
        case str() | int() | None:
            return value
        case _:
            return to_json(value)


def _part(value: Any) -> Any:
    match value:
        case {"kind": "Language", "grammar": str(grammar)}:
            return Language(None, grammar)
        case dict():
            return from_json(value)
        case list():
            return tuple(map(_part, value))
        case _:
            return value
