"""Schemas in several files: what ``draftline bundle-schema`` writes, and what of a missing document is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from draftline import InvalidRequestError, Schema
from draftline.engine.cli import app
from draftline.structured.errors import UnsupportedConstraintError
from draftline.structured.json_schema import json_schema_language

ADDRESS = {"type": "object", "properties": {"city": {"$ref": "#/$defs/city"}}, "$defs": {"city": {"enum": ["Rome"]}}}


@pytest.mark.parametrize(
    ("reference", "own", "option"),
    [
        ("parts/address.json", None, "{folder}/parts/address.json"),
        ("https://x.test/address", "https://x.test/address", "{folder}/parts/address.json"),
        ("https://x.test/address", None, "https://x.test/address={folder}/parts/address.json"),
    ],
    ids=["path", "own name", "given name"],
)
def test_a_schema_in_two_files_becomes_one(tmp_path: Path, reference: str, own: str | None, option: str) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "address.json").write_text(json.dumps(ADDRESS | ({"$id": own} if own else {})))
    person = {"type": "array", "items": {"$ref": f"{reference}#/$defs/city"}, "maxItems": 1}
    (tmp_path / "person.json").write_text(json.dumps(person))
    arguments = ["bundle-schema", str(tmp_path / "person.json"), "--document", option.format(folder=tmp_path)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0
    assert (
        json_schema_language(result.output, whitespace="compact").regex
        == json_schema_language(json.dumps({**person, "items": {"enum": ["Rome"]}}), whitespace="compact").regex
    )


@pytest.mark.parametrize("content", [None, "3", "{"], ids=["missing", "no schema", "no JSON"])
def test_a_document_that_cannot_be_used_is_named(tmp_path: Path, content: str | None) -> None:
    file, other = tmp_path / "person.json", tmp_path / "other.json"
    file.write_text('{"$ref": "other.json"}')
    if content is not None:
        other.write_text(content)
    result = CliRunner().invoke(app, ["bundle-schema", str(file), "--document", str(other)])
    assert result.exit_code == 2
    assert "other.json: " in result.output


def test_a_schema_that_is_not_whole_is_not_written(tmp_path: Path) -> None:
    file, other = tmp_path / "ref.json", tmp_path / "other.json"
    file.write_text('{"anyOf": [{"$ref": "address.json#/a"}, {"$ref": "http://json-schema.org/draft-07/schema"}]}')
    result = CliRunner().invoke(app, ["bundle-schema", str(file)])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "ref.json: no document for the references to 'address.json'" in result.stderr
    file.write_text("{}")
    other.write_text("{")  # nothing refers to it
    result = CliRunner().invoke(app, ["bundle-schema", str(file), "--document", str(other)])
    assert result.exit_code == 2
    assert "other.json: the schema is not JSON" in result.stderr


def test_a_missing_document_is_named_with_what_to_do() -> None:
    with pytest.raises(UnsupportedConstraintError) as caught:
        json_schema_language('{"$id": "https://x.test/a/", "items": {"$ref": "b#/$defs/c"}}')
    [violation] = caught.value.violations
    assert violation.pointer == "/items/$ref"
    assert "'https://x.test/a/b' is not here" in violation.reason
    assert "bundle-schema" in violation.reason


def test_schema_takes_documents() -> None:
    constraint = Schema({"$ref": "https://x.test/city"}, documents={"https://x.test/city": {"enum": ["Rome"]}})
    assert constraint.json_schema is not None
    assert json.loads(constraint.json_schema)["$defs"]["https://x.test/city"]["enum"] == ["Rome"]
    with pytest.raises(InvalidRequestError, match=r"documents: https://x.test/city: the schema is not JSON"):
        Schema({"$ref": "https://x.test/city"}, documents={"https://x.test/city": "{"})
    with pytest.raises(InvalidRequestError, match="a type refers to none"):
        Schema(dict, documents={"a": "{}"})
