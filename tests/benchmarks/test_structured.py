"""structured.py: the outcomes of an engine, and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from schemas.coverage import (
    ENGINES,
    DraftlineSchemas,
    LlguidanceSchemas,
    SchemaCase,
    SchemaRefusedError,
    judge,
    read_cases,
    summary,
)
from schemas.sections import main

CASE = SchemaCase("one", {"type": "integer"}, [{"data": 1, "valid": True}, {"data": "a", "valid": False}])


def engine(*accepted: str) -> Any:
    return lambda schema: lambda text: text in accepted


def test_outcomes_follow_from_the_accepted_texts() -> None:
    assert judge(engine("1"), CASE).outcome == "exact"
    assert judge(engine(), CASE).outcome == "incomplete"
    assert judge(engine(), CASE).reasons == ("1",)
    assert judge(engine("1", '"a"'), CASE).outcome == "unsound"
    assert judge(engine('"a"'), CASE).outcome == "unsound"

    def refuse(schema: Any) -> Any:
        raise SchemaRefusedError(["type"], ["/type: not today"])

    refused = judge(refuse, CASE)
    assert (refused.outcome, refused.keywords) == ("refused", ("type",))
    counted = summary({"a": refused, "b": judge(engine("1"), CASE)})
    assert (counted["schemas"], counted["exact"], counted["refused"]) == (2, 1, 1)
    assert counted["keywords"] == {"type": 1}
    assert counted["not_exact"] == {"a": ["refused", "/type: not today"]}


@pytest.mark.parametrize("name", ["draftline", "llguidance"])
def test_the_engines_walk_texts(name: str) -> None:
    walk: DraftlineSchemas | LlguidanceSchemas = ENGINES[name]()  # type: ignore[assignment]
    assert judge(walk, CASE).outcome == "exact"
    reference = SchemaCase("reference", {"type": "string", "pattern": r"^(b)\1"}, [])
    assert judge(walk, reference).outcome == "refused"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "schemas"
    folder.mkdir()
    group = {"schema": CASE.schema, "tests": CASE.tests}
    (folder / "single.json").write_text(json.dumps(group))
    (folder / "suite.json").write_text(
        json.dumps([{"description": "first", **group}, {"description": "second", **group}])
    )
    assert [case.name for case in read_cases(folder)] == ["single", "suite: first", "suite: second"]
    main(["--schemas", str(folder), "--engines", "draftline"])
    printed = capsys.readouterr()
    (line,) = map(json.loads, printed.out.splitlines())
    assert (line["engine"], line["exact"], line["schemas"]) == ("draftline", 3, 3)
    assert "100.0%" in printed.err
    with pytest.raises(SystemExit, match="contains no schemas"):
        main(["--schemas", str(tmp_path)])
