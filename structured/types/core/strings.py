"""Strings, bytes and URLs."""

from __future__ import annotations

import json
import re
from typing import Final

from pydantic_core import SchemaValidator

from draftline.structured.regular import charset, ecma, python_re, rust
from draftline.structured.regular.ecma_text import ecma_text, whole
from draftline.structured.regular.syntax import ANY_TEXT, Chars, alt, literal, seq
from draftline.structured.regular.unicode import WHITE_SPACE
from draftline.structured.types.core.constants import accepts
from draftline.structured.types.core.place import CoreSchema, Fragment, Place, Reader, text
from draftline.structured.types.texts import encoded, network

_INK: Final = Chars(charset.complement(charset.union(WHITE_SPACE, charset.charset([(0x1C, 0x1F)]))))
_STRIPPED: Final = whole(alt([literal(""), _INK, seq(_INK, ANY_TEXT, _INK)]))
_ASCII: Final = "^[\\u{0}-\\u{7f}]*$"
_DEFAULT_SCHEMES: Final = ("http", "https")
_DEFAULTS: Final = ("default_host", "default_port", "default_path")


def read_str(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """Strings. Patterns and lengths hold for the text as it is written: what would be stripped is not written."""
    fragment: Fragment = {"type": "string"}
    minimum = place.option(schema, "min_length", "str_min_length")
    maximum = place.option(schema, "max_length", "str_max_length")
    if minimum:
        fragment["minLength"] = minimum
    if maximum is not None:
        fragment["maxLength"] = maximum
    patterns: list[str] = []
    if (pattern := schema.get("pattern")) is not None:
        try:
            patterns.append(_pattern(pattern, place.option(schema, "regex_engine", "regex_engine")))
        except ecma.UntranslatablePatternError as error:
            shown = getattr(pattern, "pattern", pattern)
            return reader.refuse(place, "pattern", f"{shown!r} cannot be translated: {error}")
    if place.option(schema, "strip_whitespace", "str_strip_whitespace"):
        patterns.append(_STRIPPED)
    if schema.get("ascii_only"):
        patterns.append(_ASCII)
    return matching(fragment, patterns)


def matching(fragment: Fragment, patterns: list[str]) -> Fragment:
    """The strings of a schema that match all patterns."""
    if patterns:
        fragment["pattern"] = patterns[0]
    if len(patterns) > 1:
        fragment["allOf"] = [{"pattern": pattern} for pattern in patterns[1:]]
    return fragment


def _pattern(pattern: str | re.Pattern[str], engine: str | None) -> str:
    if isinstance(pattern, re.Pattern):
        return ecma_text(python_re.parse(pattern.pattern, pattern.flags))
    if engine == "python-re":
        return ecma_text(python_re.parse(pattern))
    return ecma_text(rust.parse(pattern))


def read_bytes(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """Bytes: the UTF-8 of a string (ASCII, if its length counts), base64 or hexadecimal digits, as configured."""
    low, high = schema.get("min_length") or 0, schema.get("max_length")
    if schema.get("val_json_bytes") == "base64":  # msgspec's
        return text(encoded.base64_text(low, high))
    coding = place.config.get("val_json_bytes", "utf8")
    if coding == "base64":
        return text(encoded.base64_text(low, high, url_safe=True))
    if coding == "hex":
        return text(encoded.hex_text(low, high))
    if not low and high is None:
        return {"type": "string"}
    return text(encoded.ascii_text(low, high))


def read_uuid(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """UUIDs of a version."""
    del reader, place
    return text(network.uuid_text(schema.get("version")))


def read_url(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """URLs of the schemes that pydantic reads, with a host unless it is a file's."""
    del reader
    validator = SchemaValidator(dict(schema))
    named: list[str] = schema.get("allowed_schemes") or list(_DEFAULT_SCHEMES)
    schemes = [one for one in named if accepts(validator, json.dumps(network.least_url(one)))]
    if not schemes:
        raise place.unwritable("url", f"pydantic reads no URLs of its schemes: {', '.join(named)}")
    limit = schema.get("max_length")
    fragment = text(
        network.url_text(schemes, bounded=limit is not None, user=not set(schemes) <= set(_DEFAULT_SCHEMES))
    )
    if limit is not None:
        # A value also has a slash behind its host, and what its URL leaves to the defaults.
        fragment["maxLength"] = max(0, limit - 2 - sum(len(str(schema.get(key, ""))) for key in _DEFAULTS))
    return fragment
