"""A schema document: its dialect, and the targets of its references.

The meaning of validation keywords is elsewhere (`keywords/`).
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from draftline.structured.errors import InvalidConstraintError
from draftline.structured.json_schema.metaschemas import family, uri_of
from draftline.structured.json_schema.parsing import Json, escape


class Dialect(IntEnum):
    """The versions of JSON Schema, in order. The first ones are called drafts."""

    DRAFT4 = 4
    DRAFT6 = 6
    DRAFT7 = 7
    DRAFT2019 = 2019
    DRAFT2020 = 2020


_DIALECTS: Final = {
    "json-schema.org/draft-04/schema": Dialect.DRAFT4,
    "json-schema.org/draft-06/schema": Dialect.DRAFT6,
    "json-schema.org/draft-07/schema": Dialect.DRAFT7,
    "json-schema.org/draft/2019-09/schema": Dialect.DRAFT2019,
    "json-schema.org/draft/2020-12/schema": Dialect.DRAFT2020,
    "json-schema.org/schema": Dialect.DRAFT2020,
}
_OPENAPI: Final = re.compile(r"spec\.openapis\.org/oas/3\.[12]/dialect/(?:base|\d{4}-\d\d-\d\d)")
"""The dialects of OpenAPI 3.1 and later: draft 2020-12 with keywords that make no value invalid."""

_RECURSIVE: Final = ""
"""The name of what "$recursiveAnchor" declares. No other anchor is empty."""

# Keywords whose value is a schema; a list of schemas; an object of schemas.
_SCHEMA: Final = frozenset(
    [
        "additionalItems",
        "additionalProperties",
        "contains",
        "contentSchema",
        "else",
        "if",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    ]
)
_LISTS: Final = frozenset(["allOf", "anyOf", "oneOf", "prefixItems"])
_OBJECTS: Final = frozenset(
    ["$defs", "definitions", "dependentSchemas", "dependencies", "patternProperties", "properties"]
)


@dataclass(frozen=True, slots=True)
class Location:
    """A schema and its location in the document.

    Attributes:
        pointer: JSON pointer from the document's root.
        schema: an object or a boolean.
        base: the base URI of its references.
        dialect: its version of JSON Schema.
        scope: what dynamic references in it mean: anchors, and pointers of their schemas. It depends on the schemas through
            which evaluation has come here. Anchors that only one schema has are left out.
    """

    pointer: str
    schema: Json
    base: str
    dialect: Dialect
    scope: tuple[tuple[str, str], ...] = ()

    def made(self, suffix: str, schema: Json) -> Location:
        """A schema that is not in the document but made of parts of this one; the suffix tells it from others, by a NUL."""
        return replace(self, pointer=self.pointer + suffix, schema=schema)

    def __hash__(self) -> int:
        return hash((self.pointer, self.base, self.scope))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Location)
            and self.pointer == other.pointer
            and self.schema is other.schema
            and self.scope == other.scope
        )


class UnresolvedReferenceError(ValueError):
    """A reference without a target in this document; the message says why."""


class Document:
    """The schemas of one document, by pointer and by name.

    Raises:
        InvalidConstraintError: the root is not a schema, or its draft is unknown.
    """

    def __init__(self, root: Json) -> None:
        if not isinstance(root, dict | bool):
            raise InvalidConstraintError("a schema is an object or a boolean")
        dialect = Dialect.DRAFT2020
        if isinstance(root, dict) and "$schema" in root:
            found = _dialect(root["$schema"])
            if found is None:
                raise InvalidConstraintError(
                    f"/$schema: {root['$schema']!r} is not a known draft of JSON Schema (4, 6, 7, 2019-09, 2020-12)"
                )
            dialect = found
        self._known: dict[str, Location] = {}
        self._by_uri: dict[str, str] = {}
        # The schemas with a dynamic anchor, by anchor and by the base URI of the resource that they are in.
        self._dynamic: dict[str, dict[str, str]] = {}
        self._mentioned: set[str] = set()
        self._index(root, "", "", dialect)
        self._add_metaschemas()
        self.root = self._within((), self._known[""])

    def _add_metaschemas(self) -> None:
        """Add the metaschemas that references mention, before scopes are known: they have dynamic anchors."""
        for uri in sorted(self._mentioned):
            for document in family(uri):
                own = uri_of(document)
                if own not in self._by_uri:
                    dialect = _dialect(document["$schema"])
                    assert dialect is not None
                    self._index(document, f"{own}#", own, dialect)

    @property
    def missing(self) -> list[str]:
        """The URIs of other documents that references mention, sorted."""
        return sorted(self._mentioned - self._by_uri.keys())

    def has(self, uri: str) -> bool:
        """Whether a schema of the document has this URI."""
        return uri in self._by_uri

    def referring(self, uri: str) -> Iterator[tuple[dict[str, Json], str]]:
        """The schemas that refer to the document at a URI, each with the keyword."""
        for location in self._known.values():
            for keyword in _REFERENCES:
                reference = location.schema.get(keyword) if isinstance(location.schema, dict) else None
                if isinstance(reference, str) and _whole(location.base, reference) == uri:
                    yield location.schema, keyword

    def says(self, pointer: str, keyword: str) -> bool:
        """Whether the schema at a pointer has a keyword."""
        known = self._known.get(pointer)
        return known is not None and isinstance(known.schema, dict) and keyword in known.schema

    def child(self, parent: Location, *path: str | int) -> Location:
        """The subschema at a path within a schema."""
        value = parent.schema
        pointer = parent.pointer
        for step in path:
            value = value[step]
            pointer += "/" + escape(str(step))
        known = self._known.get(pointer)
        if known is not None and known.schema is value:
            return self._within(parent.scope, known)
        if not isinstance(value, dict | bool):
            raise InvalidConstraintError(f"{pointer}: a schema is an object or a boolean")
        made = Location(pointer, value, parent.base, parent.dialect)
        self._known.setdefault(pointer, made)
        return self._within(parent.scope, made)

    def _within(self, scope: tuple[tuple[str, str], ...], location: Location) -> Location:
        """The schema, reached from a scope: the outermost resource that has an anchor says what it means."""
        names = dict(scope)
        for name, by_resource in self._dynamic.items():
            if len(by_resource) > 1 and name not in names and location.base in by_resource:
                names[name] = by_resource[location.base]
        found = tuple(sorted(names.items()))
        return location if found == location.scope else replace(location, scope=found)

    def target(self, source: Location, keyword: str) -> Location:
        """The schema that a reference keyword of ``source`` refers to.

        Raises:
            UnresolvedReferenceError: it is not in this document.
        """
        reference: str = source.schema[keyword]
        target = self.resolve(source, reference)
        if keyword == "$ref" or not isinstance(target.schema, dict):
            return target
        if keyword == "$recursiveRef":
            anchor = _RECURSIVE if target.schema.get("$recursiveAnchor") is True else None
        else:
            # A JSON pointer is no dynamic reference, nor is a plain anchor of the same name.
            fragment = urllib.parse.unquote(reference.partition("#")[2])
            anchor = fragment if target.schema.get("$dynamicAnchor") == fragment else None
        pointer = None if anchor is None else dict(source.scope).get(anchor)
        return target if pointer is None else self._within(source.scope, self._known[pointer])

    def resolve(self, source: Location, reference: str) -> Location:
        """The target of a reference that does not depend on the path of evaluation.

        Raises:
            UnresolvedReferenceError: it is not in this document.
        """
        return self._within(source.scope, self._resolve(source, reference))

    def followed(self, source: Location) -> Location:
        """The schema that a chain of references leads to, as far as they are in this document."""
        for _ in range(100):
            reference = source.schema.get("$ref") if isinstance(source.schema, dict) else None
            if not isinstance(reference, str):
                break
            try:
                source = self.resolve(source, reference)
            except UnresolvedReferenceError:
                break
        return source

    def _resolve(self, source: Location, reference: str) -> Location:
        uri = urllib.parse.urljoin(source.base, reference) if source.base else reference
        if reference.startswith("#"):
            uri = source.base.partition("#")[0] + reference
        whole, _, fragment = uri.partition("#")
        fragment = urllib.parse.unquote(fragment)
        if whole not in self._by_uri:
            raise UnresolvedReferenceError(
                f"the document {whole!r} is not here, and nothing is fetched: draftline bundle-schema, or Schema(documents=…),"
                " puts documents into a schema"
            )
        start = self._known[self._by_uri[whole]]
        if fragment == "":
            return start
        if not fragment.startswith("/"):
            pointer = self._by_uri.get(f"{whole}#{fragment}")
            if pointer is None:
                raise UnresolvedReferenceError(f"there is no anchor {fragment!r}")
            return self._known[pointer]
        return self._walk(start, fragment, reference)

    def _walk(self, start: Location, fragment: str, reference: str) -> Location:
        value, pointer = start.schema, start.pointer
        base, dialect = start.base, start.dialect
        for part in fragment[1:].split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and name in value:
                value = value[name]
            elif isinstance(value, list) and re.fullmatch(r"0|[1-9]\d*", name) and int(name) < len(value):
                value = value[int(name)]
            else:
                raise UnresolvedReferenceError(f"{reference!r} points to nothing")
            pointer += "/" + escape(name)
            known = self._known.get(pointer)
            if known is not None and known.schema is value:
                base, dialect = known.base, known.dialect
        if pointer in self._known:
            return self._known[pointer]
        if not isinstance(value, dict | bool):
            raise UnresolvedReferenceError(f"{reference!r} points to something that is not a schema")
        self._index(value, pointer, base, dialect)
        return self._known[pointer]

    def _index(self, value: Json, pointer: str, base: str, dialect: Dialect) -> None:
        """Record every schema at and below ``pointer``, with its base URI and all names that references may use."""
        if isinstance(value, bool):
            self._known[pointer] = Location(pointer, value, base, dialect)
            return
        if not isinstance(value, dict):
            return
        if pointer == "":
            self._by_uri[""] = ""
        # Drafts have "$schema" in whole documents only. Those that were put into another schema often keep theirs.
        dialect = _dialect(value.get("$schema")) or dialect
        only_reference = dialect <= Dialect.DRAFT7 and isinstance(value.get("$ref"), str)
        named = value.get("id" if dialect == Dialect.DRAFT4 else "$id")
        if isinstance(named, str) and not only_reference:
            whole, _, fragment = named.partition("#")
            if whole:
                base = urllib.parse.urljoin(base, whole)
                self._by_uri.setdefault(base, pointer)
            if fragment and dialect <= Dialect.DRAFT7:
                self._by_uri.setdefault(f"{base}#{fragment}", pointer)
        for keyword in _REFERENCES:
            if isinstance(reference := value.get(keyword), str):
                self._mentioned.add(_whole(base, reference))
        for keyword in ("$anchor", "$dynamicAnchor"):
            anchor = value.get(keyword)
            if isinstance(anchor, str) and dialect >= Dialect.DRAFT2019:
                self._by_uri.setdefault(f"{base}#{anchor}", pointer)
                if keyword == "$dynamicAnchor":
                    self._dynamic.setdefault(anchor, {}).setdefault(base, pointer)
        in_root = self._by_uri.get(base) == pointer
        if value.get("$recursiveAnchor") is True and dialect == Dialect.DRAFT2019 and in_root:
            self._dynamic.setdefault(_RECURSIVE, {}).setdefault(base, pointer)
        if pointer == "" and base:
            self._by_uri.setdefault(base, "")
        self._known[pointer] = Location(pointer, value, base, dialect)
        if only_reference:
            # Siblings of $ref are ignored, but references may point into its definitions.
            value = {name: value[name] for name in ("definitions",) if name in value}
        for path, schema in _subschemas(value):
            below = pointer + "".join("/" + escape(str(step)) for step in path)
            self._index(schema, below, base, dialect)


_REFERENCES: Final = ("$ref", "$dynamicRef")


def _whole(base: str, reference: str) -> str:
    """The URI of the document that a reference leads into."""
    return urllib.parse.urljoin(base, reference.partition("#")[0])


def _dialect(name: Json) -> Dialect | None:
    if not isinstance(name, str):
        return None
    name = re.sub(r"^https?://|#$", "", name)
    return Dialect.DRAFT2020 if _OPENAPI.fullmatch(name) else _DIALECTS.get(name)


def schema_uri(dialect: Dialect) -> str:
    """What "$schema" is in a schema of a dialect."""
    scheme = "http" if dialect <= Dialect.DRAFT7 else "https"
    return f"{scheme}://{next(name for name, one in _DIALECTS.items() if one == dialect)}"


def _subschemas(value: dict[str, Json]) -> Iterator[tuple[tuple[str | int, ...], Json]]:
    for keyword, inner in value.items():
        if keyword in _SCHEMA or (keyword == "items" and not isinstance(inner, list)):
            yield (keyword,), inner
        elif keyword in _LISTS or keyword == "items":
            if isinstance(inner, list):
                for position, schema in enumerate(inner):
                    yield (keyword, position), schema
        elif keyword in _OBJECTS and isinstance(inner, dict):
            for name, schema in inner.items():
                yield (keyword, name), schema
