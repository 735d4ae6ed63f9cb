"""Tagged unions: the member that tells the options of a ``oneOf`` or an ``anyOf`` apart, and what it is in each.

To JSON Schema an object without its tag may be valid. Readers of tagged unions refuse it, so it is not written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from draftline.structured.json_schema.document import Location
from draftline.structured.json_schema.keywords.clause import Expander
from draftline.structured.json_schema.shapes.demands import Demands, both


@dataclass(frozen=True, slots=True)
class Tag:
    """The member that tells options apart.

    Attributes:
        name: its name.
        texts: its texts for each option, as a ``mapping`` lists them; none where it lists none.
    """

    name: str
    texts: tuple[tuple[str, ...], ...]


def tag_of(expander: Expander, location: Location, keyword: str, options: list[Location]) -> Tag | None:
    """The tag of the union that a schema has under ``keyword``; None if it has none, or objects may be without it.

    OpenAPI's ``discriminator`` names it. Where that is missing beside ``oneOf``, it is the member that has one text in each
    option, another one each time, and this text as its default. So generators write unions whose discriminator is code.
    """
    if "discriminator" not in location.schema:
        name = _default_tag(expander, options) if keyword == "oneOf" else None
        return None if name is None else Tag(name, tuple(() for _ in options))
    found = location.schema["discriminator"]
    if not isinstance(found, dict) or "defaultMapping" in found or not isinstance(found.get("propertyName"), str):
        return None
    mapping = found.get("mapping")
    texts = tuple(_mapped(mapping, option) if isinstance(mapping, dict) else () for option in options)
    return Tag(found["propertyName"], texts)


def tagged(expander: Expander, location: Location, tag: Tag | None, options: list[Demands]) -> list[Demands]:
    """The options of a union. Their objects have the tag, if any can have it."""
    if tag is None or not expander.reading.discriminates:
        return options
    is_object = expander.demand(location.made("\0object", {"type": "object"}))
    having = [_having(expander, location, tag, index, option) for index, option in enumerate(options)]
    return options if all(expander.is_empty(both(option, is_object)) for option in having) else having


def _having(expander: Expander, location: Location, tag: Tag, index: int, option: Demands) -> Demands:
    """The values of an option that have its tag, with a text of the ``mapping`` unless the option has others."""
    required = {"required": [tag.name]}
    if tag.texts[index]:
        mapped = {**required, "properties": {tag.name: {"enum": list(tag.texts[index])}}}
        having = both(option, expander.demand(location.made(f"\0mapping{index}", mapped)))
        if not expander.is_empty(having):
            return having
    return both(option, expander.demand(location.made("\0discriminator", required)))


def _mapped(mapping: dict[str, Any], option: Location) -> tuple[str, ...]:
    """The texts that a ``mapping`` has for an option: it names the option's reference, or the last part of that."""
    reference = option.schema.get("$ref") if isinstance(option.schema, dict) else None
    if not isinstance(reference, str):
        return ()
    return tuple(text for text, target in mapping.items() if target in (reference, reference.rpartition("/")[2]))


def _default_tag(expander: Expander, options: list[Location]) -> str | None:
    first, *others = [_default_texts(expander, option) for option in options]
    for name, text in first.items():
        texts = {text, *(one[name] for one in others if name in one)}
        if len(texts) == len(options) > 1:
            return name
    return None


def _default_texts(expander: Expander, option: Location) -> dict[str, str]:
    """The members of a schema whose only value is a text and their default."""
    schema = expander.document.followed(option).schema
    properties = schema.get("properties") if isinstance(schema, dict) else None
    found: dict[str, str] = {}
    for name, member in properties.items() if isinstance(properties, dict) else ():
        text = member.get("default") if isinstance(member, dict) else None
        if isinstance(text, str) and (member.get("const") == text or member.get("enum") == [text]):
            found[name] = text
    return found
