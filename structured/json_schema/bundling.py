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
from draftline.structured.json_schema.document import Dialect, Document
from draftline.structured.json_schema.limits import DEFAULT_LIMITS
from draftline.structured.json_schema.parsing import Json, parse


def bundled(schema: str, documents: Mapping[str, str]) -> str:
    """A schema with all documents that it refers to, directly or not.

    Args:
        schema: the JSON text of the schema.
        documents: the JSON texts of other schemas, by the absolute URIs at which references find them.

    Returns:
        The JSON text of one schema. References stay as they are, except those to a document by a URI that is not its own.

    Raises:
        InvalidConstraintError: one of them is no schema or over a limit, or has a number that no 64-bit float equals.
    """
    root = parse(schema, DEFAULT_LIMITS)
    own: dict[str, str] = {}  # the URI that a document has, by the one at which it was found
    whole = Document(root)
    while found := [uri for uri in whole.missing if uri in documents and own.get(uri) != uri]:
        dialect = whole.root.dialect
        keyword = "definitions" if dialect <= Dialect.DRAFT7 else "$defs"
        definitions = root.setdefault(keyword, {})
        if not isinstance(definitions, dict):
            raise InvalidConstraintError(f"/{keyword}: has to be an object")
        for uri in found:
            if uri not in own:
                try:
                    base, resource = _resource(uri, parse(documents[uri], DEFAULT_LIMITS), dialect)
                except InvalidConstraintError as error:
                    raise InvalidConstraintError(f"{uri}: {error}") from None
                if base not in own.values() and not whole.has(base):
                    definitions[_unused(base, definitions)] = resource
                own[uri] = base
            if own[uri] != uri:
                _redirect(whole, uri, own[uri])
        whole = Document(root)
    return json.dumps(root, default=_number, ensure_ascii=False)


def _resource(uri: str, document: Json, dialect: Dialect) -> tuple[str, Json]:
    """A document as a definition in another one of a dialect, and the URI that it has there: its own, if it says one."""
    said = Document(document).root.dialect
    if isinstance(document, bool):
        return uri, {"id" if dialect == Dialect.DRAFT4 else "$id": uri, "allOf": [document]}
    inner = said if "$schema" in document else dialect
    named = "id" if inner == Dialect.DRAFT4 else "$id"
    if "$ref" in document and min(inner, dialect) <= Dialect.DRAFT7:
        # Beside a reference, an "$id" would have no meaning.
        reference = {"$ref": document["$ref"]}
        if inner <= Dialect.DRAFT7:
            kept = {name: document[name] for name in ("$schema", "definitions") if name in document}
            return uri, {**kept, named: uri, "allOf": [reference]}
        document = {name: value for name, value in document.items() if name != "$ref"}
        document["allOf"] = [*document.get("allOf", []), reference]
    own = document.get(named)
    base = urllib.parse.urljoin(uri, own.partition("#")[0]) if isinstance(own, str) else uri
    return base, {**document, named: base}


def _redirect(document: Document, uri: str, own: str) -> None:
    """Let references to a URI lead to the document's own URI. Its JSON pointers and anchors begin there."""
    for schema, keyword in document.referring(uri):
        _, mark, fragment = schema[keyword].partition("#")
        schema[keyword] = own + mark + fragment


def _unused(name: str, definitions: Mapping[str, Json]) -> str:
    while name in definitions:
        name += "'"
    return name


def _number(value: Decimal) -> float:
    if Decimal(repr(float(value))) != value:
        raise InvalidConstraintError(f"{value} is no 64-bit float, which a bundled schema needs")
    return float(value)
