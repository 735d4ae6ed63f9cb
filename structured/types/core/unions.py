"""Unions: a text of any choice is a text of the union."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any

from draftline.structured.errors import Violation
from draftline.structured.types.core.place import NOTHING, CoreSchema, Fragment, Place, Reader, UnwritableError, name_of


def any_of(options: list[Fragment]) -> Fragment:
    """The values of any option; one enum of enums."""
    options = [option for option in options if option != NOTHING]
    if not options:
        return NOTHING
    if all(option.keys() == {"enum"} for option in options):
        return {"enum": [value for option in options for value in option["enum"]]}
    return options[0] if len(options) == 1 else {"anyOf": options}


def writable(reader: Reader, choices: Iterable[CoreSchema], place: Place) -> list[Fragment]:
    """The schemas of the choices that can be written.

    Raises:
        UnwritableError: none can.
    """
    written: list[Fragment] = []
    violations: list[Violation] = []
    for choice in choices:
        try:
            written.append(reader.read(choice, place))
        except UnwritableError as error:
            violations.extend(error.violations)
    if violations and not written:
        raise UnwritableError(violations)
    return written


def read_union(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """Unions, smart and from left to right: both accept what one of their choices accepts."""
    choices = [choice[0] if isinstance(choice, tuple) else choice for choice in schema["choices"]]
    return any_of(writable(reader, choices, place))


def read_nullable(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """Optional values."""
    return any_of(writable(reader, [schema["schema"], {"type": "none"}], place))


def read_tagged_union(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """Discriminated unions. The discriminator is always written, even where the field has a default."""
    discriminator: Any = schema["discriminator"]
    tags: dict[int, list[Any]] = {}  # as pydantic compares them
    choices: dict[int, CoreSchema] = {}
    for tag, choice in schema["choices"].items():
        # A tag may stand for another one.
        seen = {tag}
        while not isinstance(choice, dict) and choice in schema["choices"] and choice not in seen:
            seen.add(choice)
            choice = schema["choices"][choice]
        choices[id(choice)] = choice
        tags.setdefault(id(choice), []).append(tag)
    names = [] if callable(discriminator) else _names(discriminator)
    if callable(discriminator):
        reader.unenforced(place, "discriminator", f"{name_of(discriminator)} is Python code")
    elif not names:
        return reader.refuse(place, "discriminator", "a discriminator within another object")
    options: list[Fragment] = []
    violations: list[Violation] = []
    for number, choice in choices.items():
        try:
            option = reader.read(choice, place)
            if callable(discriminator):
                tagged = _told(discriminator, tags[number], option, reader.definitions)
            else:
                tagged = any_of([_tagged(name, names, _values(tags[number])) for name in names])
            options.append({"allOf": [option, tagged]} if tagged else option)
        except UnwritableError as error:
            violations.extend(error.violations)
    if violations and not options:
        raise UnwritableError(violations)
    return any_of(options)


def _tagged(name: str, names: list[str], values: list[Any]) -> Fragment:
    """Objects with their tag under one of its names, and nothing under the others."""
    others = {other: False for other in names if other != name}
    return {"type": "object", "required": [name], "properties": {name: {"enum": values}, **others}}


def _values(tags: Iterable[Any]) -> list[str | int]:
    """The values of tags in JSON, each once."""
    values = (tag.value if isinstance(tag, Enum) else tag for tag in tags)
    return list(dict.fromkeys(value for value in values if isinstance(value, str | int)))


def _told(
    discriminator: Callable[[Any], Any], tags: list[Any], option: Fragment, definitions: Mapping[str, Fragment]
) -> Fragment:
    """Objects with a member that tells a discriminator in Python the tag of ``option``; ``{}`` if no single member does.

    Most such functions look at one member. Where the function takes objects without any for this option, the member may be
    missing, but it has no value that tells another tag.
    """
    if "$ref" in option:
        option = definitions[option["$ref"].removeprefix("#/$defs/")]
    needs_none = _tells(discriminator, tags, {})
    told: dict[str, Fragment] = {}
    for name, member in option.get("properties", {}).items():
        listed = member.get("enum", []) if isinstance(member, dict) else []
        values = [value for value in listed if _tells(discriminator, tags, {name: value})]
        if values and not needs_none:
            return {"type": "object", "required": [name], "properties": {name: {"enum": values}}}
        if values and len(values) < len(listed):
            told[name] = {"enum": values}
    return {"type": "object", "properties": told} if told else {}


def _tells(discriminator: Callable[[Any], Any], tags: list[Any], value: Fragment) -> bool:
    try:
        return bool(discriminator(value) in tags)
    except Exception:  # noqa: BLE001 - the type's own code may raise any
        return False


def _names(discriminator: Any) -> list[str]:
    """The names of the member that holds the tag."""
    if isinstance(discriminator, str):
        return [discriminator]
    paths = discriminator if isinstance(discriminator[0], list) else [discriminator]
    return [path[0] for path in paths if len(path) == 1 and isinstance(path[0], str)]
