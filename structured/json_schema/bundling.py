"""One document out of several: the documents that a schema refers to move into its definitions, each with its URI as "$id".

JSON Schema calls this bundling (Core 2020-12, section 9.3). Nothing is fetched, so a schema in several files is bundled
before it becomes a constraint.
"""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Mapping
from decimal import Decimal

from draftline.structured.errors import InvalidConstraintError
from draftline.structured.json_schema.document import Dialect, Document, Json, parse
from draftline.structured.json_schema.limits import DEFAULT_LIMITS


def bundled(schema: str, documents: Mapping[str, str]) -> str:
    """A schema with all documents that it refers to, directly or not.

    Args:
        schema: the JSON text of the schema.
        documents: the JSON texts of other schemas, by the absolute URIs at which references find them.

    Returns:
        The JSON text of one schema, in which every reference stays as it is.

    Raises:
        InvalidConstraintError: one of them is no schema or over a limit, or has a number that no 64-bit float equals.
    """
    root = parse(schema, DEFAULT_LIMITS)
    while found := [uri for uri in Document(root).missing if uri in documents]:
        dialect = Document(root).root.dialect
        keyword = "definitions" if dialect <= Dialect.DRAFT7 else "$defs"
        definitions = root.setdefault(keyword, {})
        if not isinstance(definitions, dict):
            raise InvalidConstraintError(f"/{keyword}: has to be an object")
        for uri in found:
            try:
                resources = _resources(uri, parse(documents[uri], DEFAULT_LIMITS), dialect)
            except InvalidConstraintError as error:
                raise InvalidConstraintError(f"{uri}: {error}") from None
            for name, part in resources.items():
                definitions[_unused(name, definitions)] = part
    return json.dumps(root, default=_number, ensure_ascii=False)


def _resources(uri: str, document: Json, dialect: Dialect) -> dict[str, Json]:
    """A document as definitions of another one, by their names."""
    said = Document(document).root.dialect
    if isinstance(document, dict) and "$schema" in document:
        dialect = said
    named = "id" if dialect == Dialect.DRAFT4 else "$id"
    if isinstance(document, bool) or (dialect <= Dialect.DRAFT7 and "$ref" in document):
        # An "$id" would have no place, or no meaning.
        return {uri: {named: uri, "allOf": [document]}}
    own = document.get(named)
    if not isinstance(own, str):
        return {uri: {named: uri, **document}}
    base = urllib.parse.urljoin(uri, own.partition("#")[0])
    if base == uri:
        return {uri: {**document, named: uri}}
    # It has another name than the one by which it was found.
    return {uri: {named: uri, "allOf": [{"$ref": base}]}, base: {**document, named: base}}


def _unused(name: str, definitions: Mapping[str, Json]) -> str:
    while name in definitions:
        name += "'"
    return name


def _number(value: Decimal) -> float:
    if Decimal(repr(float(value))) != value:
        raise InvalidConstraintError(f"{value} is no 64-bit float, which a bundled schema needs")
    return float(value)
