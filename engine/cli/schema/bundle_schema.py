"""``draftline bundle-schema``: one JSON Schema out of several files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from draftline.engine.errors import UsageError, unreadable
from draftline.structured.errors import InvalidConstraintError
from draftline.structured.json_schema.bundling import bundled
from draftline.structured.json_schema.document import Document
from draftline.structured.json_schema.limits import DEFAULT_LIMITS
from draftline.structured.json_schema.parsing import Json, parse


def bundle_schema(
    file: Annotated[Path, typer.Argument(help="a JSON Schema", metavar="FILE")],
    document: Annotated[
        list[str] | None,
        typer.Option(metavar="[URI=]FILE", help="a document that the schema refers to; may be given again"),
    ] = None,
) -> None:
    """Put the documents that a JSON Schema refers to into it, and write the whole schema to standard output.

    Nothing is fetched. A document's URI is its "$id", or else its path as seen from FILE, as relative references write
    it.

    **Examples**

    - `draftline bundle-schema person.json --document address.json > whole.json`
    - `draftline bundle-schema person.json --document https://example.org/address=address.json`
    """
    documents = dict(_named(one, file.parent) for one in document or ())
    try:
        whole = bundled(read_schema(file), documents)
        missing = Document(parse(whole, DEFAULT_LIMITS)).missing
    except InvalidConstraintError as error:
        raise UsageError(str(error)) from error
    if missing:
        listed = ", ".join(map(repr, missing))
        raise UsageError(f"{file}: no document for the references to {listed}: add --document [URI=]FILE")
    typer.echo(whole)


def _named(option: str, folder: Path) -> tuple[str, str]:
    """The URI and the text of a document."""
    uri, given, path = option.rpartition("=")
    text = read_schema(Path(path))
    try:
        document = parse(text, DEFAULT_LIMITS)
        Document(document)
    except InvalidConstraintError as error:  # here, as `bundled` reads only documents that something refers to
        raise UsageError(f"{path}: {error}") from error
    return (uri if given else _own_uri(document) or Path(os.path.relpath(path, folder)).as_posix()), text


def _own_uri(document: Json) -> str | None:
    named = document.get("$id", document.get("id")) if isinstance(document, dict) else None
    return named.partition("#")[0] if isinstance(named, str) else None


def read_schema(file: Path) -> str:
    """The text of a file.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: {unreadable(error)}") from error
