"""The values that keywords may have, as the drafts' metaschemas say. A malformed one would constrain nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from draftline.structured.json_schema.document import Dialect, Document, Location, schema_uri
from draftline.structured.json_schema.keywords.clause import invalid, is_number
from draftline.structured.json_schema.parsing import Json


@dataclass(frozen=True, slots=True)
class _Kind:
    """Values that a keyword may have.

    Attributes:
        expected: what an error says that they are.
        fits: whether a value is one, whatever the schemas in it are.
        schemas: the paths to the schemas in one.
    """

    expected: str
    fits: Callable[[Json], bool]
    schemas: Callable[[Json], Iterable[tuple[str | int, ...]]] = lambda value: ()


def _is_names(value: Json) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value) and len(set(value)) == len(value)


def _is_count(value: Json) -> bool:
    return is_number(value) and value >= 0 and Fraction(value).denominator == 1


def _is_dependencies(value: Json) -> bool:
    return isinstance(value, dict) and all(_is_names(one) for one in value.values() if isinstance(one, list))


_BOOLEAN: Final = _Kind("true or false", lambda value: isinstance(value, bool))
_NUMBER: Final = _Kind("a number", is_number)
_STEP: Final = _Kind("a number above zero", lambda value: is_number(value) and value > 0)
_COUNT: Final = _Kind("a non-negative integer", _is_count)
_STRING: Final = _Kind("a string", lambda value: isinstance(value, str))
_LIST: Final = _Kind("a list", lambda value: isinstance(value, list))
_NAMES: Final = _Kind("a list of different names", _is_names)
_ANY: Final = _Kind("a value", lambda value: True)
_SCHEMA: Final = _Kind("a schema", lambda value: True, lambda value: [()])
_ONE_SCHEMA: Final = _Kind("one schema", lambda value: not isinstance(value, list), lambda value: [()])
_SCHEMA_OR_LIST: Final = _Kind("a schema or a list of schemas", lambda value: True)
_SCHEMAS: Final = _Kind(
    "a non-empty list of schemas",
    lambda value: isinstance(value, list) and bool(value),
    lambda value: [(index,) for index in range(len(value))],
)
_SCHEMAS_BY_NAME: Final = _Kind(
    "an object", lambda value: isinstance(value, dict), lambda value: [(name,) for name in value]
)
_NAMES_BY_NAME: Final = _Kind(
    "an object of lists of different names",
    lambda value: isinstance(value, dict) and all(map(_is_names, value.values())),
)
_DEPENDENCIES: Final = _Kind(
    "an object of schemas and lists of different names",
    _is_dependencies,
    lambda value: [(name,) for name, one in value.items() if not isinstance(one, list)],
)

_D4, _D6, _D7, _D2019, _D2020 = Dialect

# The first and the last draft of some keywords, and the kind of their values. "$ref" and "type" are checked where they are read.
_KEYWORDS: Final[tuple[tuple[Dialect, Dialect, _Kind, tuple[str, ...]], ...]] = (
    (_D4, _D2020, _NUMBER, ("maximum", "minimum")),
    (_D4, _D4, _BOOLEAN, ("exclusiveMaximum", "exclusiveMinimum")),
    (_D6, _D2020, _NUMBER, ("exclusiveMaximum", "exclusiveMinimum")),
    (_D4, _D2020, _STEP, ("multipleOf",)),
    (_D4, _D2020, _COUNT, ("maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties")),
    (_D2019, _D2020, _COUNT, ("maxContains", "minContains")),
    (_D4, _D2020, _BOOLEAN, ("uniqueItems",)),
    (_D4, _D2020, _STRING, ("format", "pattern")),
    (_D2019, _D2019, _STRING, ("$recursiveRef",)),
    (_D2020, _D2020, _STRING, ("$dynamicRef",)),
    (_D7, _D2020, _STRING, ("contentEncoding", "contentMediaType")),
    (_D6, _D2020, _ANY, ("const",)),
    (_D4, _D2020, _LIST, ("enum",)),
    (_D4, _D2020, _NAMES, ("required",)),
    (_D4, _D2020, _SCHEMA, ("additionalProperties", "not")),
    (_D4, _D2019, _SCHEMA, ("additionalItems",)),
    (_D6, _D2020, _SCHEMA, ("contains", "propertyNames")),
    (_D7, _D2020, _SCHEMA, ("else", "if", "then")),
    (_D2019, _D2020, _SCHEMA, ("unevaluatedItems", "unevaluatedProperties")),
    (_D4, _D2019, _SCHEMA_OR_LIST, ("items",)),
    (_D2020, _D2020, _ONE_SCHEMA, ("items",)),
    (_D4, _D2020, _SCHEMAS, ("allOf", "anyOf", "oneOf")),
    (_D2020, _D2020, _SCHEMAS, ("prefixItems",)),
    (_D4, _D2020, _SCHEMAS_BY_NAME, ("definitions", "patternProperties", "properties")),
    (_D2019, _D2020, _SCHEMAS_BY_NAME, ("$defs", "dependentSchemas")),
    (_D2019, _D2020, _NAMES_BY_NAME, ("dependentRequired",)),
    (_D4, _D2020, _DEPENDENCIES, ("dependencies",)),
)  # fmt: skip

_KINDS: Final = {
    dialect: {name: kind for first, last, kind, names in _KEYWORDS if first <= dialect <= last for name in names}
    for dialect in Dialect
}

_WITHOUT_CONDITIONS: Final = frozenset(["$defs", "additionalItems", "contentEncoding", "contentMediaType"])
"""Keywords that make no value invalid by themselves in the drafts that have them."""

_AJV: Final = "only ajv has it; a pattern can say it"
_ELSEWHERE: Final = {
    "divisibleBy": 'only draft 3 has it; later drafts have "multipleOf"',
    "disallow": 'only draft 3 has it; later drafts have "not"',
    "extends": 'only draft 3 has it; later drafts have "allOf"',
    "formatMinimum": _AJV,
    "formatMaximum": _AJV,
    "formatExclusiveMinimum": _AJV,
    "formatExclusiveMaximum": _AJV,
}
"""Keywords that no draft here has, and that make values invalid elsewhere, each with a remedy."""


def ignored_keywords(location: Location) -> Iterator[tuple[str, str]]:
    """The keywords of a schema that its draft does not have, and that others give a meaning; each with a remedy."""
    yield from ((keyword, reason) for keyword, reason in _ELSEWHERE.items() if keyword in location.schema)
    schema, draft = location.schema, location.dialect
    for keyword, value in schema.items():
        if keyword in _KINDS[draft] or keyword in _WITHOUT_CONDITIONS:
            continue
        having = next((one for one in Dialect if keyword in _KINDS[one]), None)
        if having is not None and _is_well_formed(_KINDS[having][keyword], value):
            yield keyword, f'its draft does not have it; another one does: "$schema": "{schema_uri(having)}"'
    types = schema.get("type")
    if schema.get("nullable") is True and "null" not in (types if isinstance(types, list) else [types]):
        yield (
            "nullable",
            'only OpenAPI 3.0 has it; in JSON Schema "null" is one of the types: "type": ["string", "null"]',
        )


def _is_well_formed(kind: _Kind, value: Json) -> bool:
    """Whether a value is of a kind, and the schemas in it are schemas."""
    if not kind.fits(value):
        return False
    return all(isinstance(value[path[0]] if path else value, dict | bool) for path in kind.schemas(value))


def check_values(document: Document, location: Location) -> None:
    """Check the values of a schema's keywords, but not what is in the schemas in them.

    Raises:
        InvalidConstraintError: one is malformed.
    """
    kinds = _KINDS[location.dialect]
    for keyword, value in location.schema.items():
        kind = kinds.get(keyword)
        if kind is None:
            continue
        if not kind.fits(value):
            raise invalid(location, keyword, kind.expected, _older(location, keyword, value))
        for path in kind.schemas(value):
            document.child(location, keyword, *path)


def _older(location: Location, keyword: str, value: Json) -> str:
    """The newest older draft in which a keyword may have a value: schemas often do not say of which draft they are."""
    for draft in sorted(Dialect, reverse=True):
        kind = _KINDS[draft].get(keyword) if draft < location.dialect else None
        if kind is not None and kind.fits(value):
            return f'; an older draft has that: "$schema": "{schema_uri(draft)}"'
    return ""
