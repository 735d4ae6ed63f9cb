"""What ``draftline check-schema`` says of schemas that are enforced in every way, and of others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from draftline.engine.cli import app


@pytest.mark.parametrize(
    ("schema", "flags", "code", "expected"),
    [
        (
            {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False},
            [],
            0,
            ["enforced: the whole schema, on the device, by an automaton of "],
        ),
        (
            {"type": "object", "properties": {"a": {"type": "string", "contentEncoding": "base64"}}},
            [],
            0,
            [
                "not enforced: #/properties/a/contentEncoding: contentEncoding: ",
                "enforced: all else, on the host, by a grammar",
                "not on the device: #: members or items may be any value",
                'to change that: set "additionalProperties": false or use --close-objects',
            ],
        ),
        (
            {"type": "object", "properties": {"a": {"type": "null"}}},
            ["--close-objects"],
            0,
            ["closed: #", "enforced: the whole schema, on the device"],
        ),
        (
            {"type": "array"},
            ["--close-objects"],
            0,
            [
                "enforced: the whole schema, on the host, by a grammar",
                "not on the device: #: members or items may be any value",
                'to change that: set "additionalProperties": false; give members and items a type',
            ],
        ),
        (
            {"properties": {"a": {"$ref": "https://x/y"}, "b": {"pattern": "(x)\\1"}}},
            [],
            1,
            ["refused: #/properties/a/$ref: $ref: ", "refused: #/properties/b/pattern: pattern: "],
        ),
        ({"type": "nothing"}, [], 1, ['invalid: #/type: expected the name of a type or a list of them, not "nothing"']),
    ],
    ids=["automaton", "grammar", "closed", "open", "refused", "invalid"],
)
def test_check_schema(tmp_path: Path, schema: Any, flags: list[str], code: int, expected: list[str]) -> None:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(schema))
    result = CliRunner().invoke(app, ["check-schema", str(file), *flags])
    assert result.exit_code == code
    lines = result.output.splitlines()
    assert len(lines) == len(expected)
    for line, begin in zip(lines, expected, strict=True):
        assert line.startswith(begin)


@pytest.mark.parametrize("command", ["check-schema", "bundle-schema"])
def test_a_file_that_is_not_utf_8_is_wrong_usage(tmp_path: Path, command: str) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(b'"\xff"')
    result = CliRunner().invoke(app, [command, str(file)])
    assert (result.exit_code, result.stderr) == (2, f"draftline: error: {file}: is not UTF-8 text\n")


def test_a_file_that_cannot_be_read_is_wrong_usage(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["check-schema", str(tmp_path / "none.json")])
    assert result.exit_code == 2
    assert "none.json" in result.output


@pytest.mark.parametrize("command", ["check-schema", "bundle-schema"])
def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path, command: str) -> None:
    path = tmp_path / "schema.json"
    path.write_text('{"type": "integer"}\r\n', encoding="utf-8-sig", newline="")
    result = CliRunner().invoke(app, [command, str(path)])
    assert result.exit_code == 0, result.output
    assert "\ufeff" not in result.output
