"""The benchmark of tool schemas: which tools it finds, how it writes their types, and what it counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from schemas import tool_schemas

DAY = {"name": "calendar.day", "parameters": {"type": "dict", "properties": {"day": {"type": "float"}}}}
LEAF: dict[str, Any] = {"type": "ArrayList", "items": {"$ref": "#/$defs/leaf"}, "maxItems": 1}
TREE = {
    "name": "tree",
    "parameters": {"type": "dict", "properties": {"leaf": LEAF}, "$defs": {"leaf": {"type": "array"}}},
}
NONE = {
    "name": "none",
    "parameters": {"type": "dict", "properties": {"a": {"type": "integer", "enum": ["x"]}}, "required": ["a"]},
}


def test_a_packages_tools_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data" / "more"
    data.mkdir(parents=True)
    rows = [{"id": 1, "function": [DAY, NONE]}, {"id": 2, "function": DAY}, TREE, {"id": 3, "question": "?"}, ["x"]]
    (data / "a.json").write_text("\n".join(map(json.dumps, rows)) + "\nno JSON")
    tool_schemas.main([str(tmp_path)])
    printed = capsys.readouterr()
    counts = json.loads(printed.out)
    assert counts["tools"] == 3
    assert counts["automaton"] + counts["grammar"] == 2
    assert counts["refused"] == 1
    assert printed.err.startswith("none: ")


def test_a_folder_without_tools_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        tool_schemas.main([str(tmp_path)])
    assert "there are no tools" in capsys.readouterr().err


def test_types_become_json_schemas() -> None:
    given = {"type": "dict", "properties": {"type": {"type": "tuple", "items": {"type": "any"}}}}
    assert tool_schemas.json_schema(given) == {"type": "object", "properties": {"type": {"type": "array", "items": {}}}}
