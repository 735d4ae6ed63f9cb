"""The schemas of schemas, by draft, so that references to them need no network: `metaschemas.json`.

They are as published at https://json-schema.org/specification-links, each on one line, under the AFL or BSD licence.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

_FILE: Final = Path(__file__).with_name("metaschemas.json")


@functools.cache
def metaschemas() -> Mapping[str, list[Any]]:
    """The metaschema of each draft, by its URI, and its vocabularies."""
    drafts: dict[str, list[Any]] = json.loads(_FILE.read_text(encoding="utf-8"), parse_float=Decimal)
    return drafts


def family(uri: str) -> list[Any]:
    """The documents that belong to the one with this URI; none if it is not known."""
    for documents in metaschemas().values():
        if any(uri == uri_of(document) for document in documents):
            return documents
    return []


def uri_of(document: Any) -> str:
    """The URI of a metaschema."""
    uri: str = document.get("$id") or document["id"]
    return uri.rstrip("#")
