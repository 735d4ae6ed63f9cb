"""Real schemas with instances, and the official suite: the number of exact ones, and no unsound one."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from walk import Walker

from draftline.structured.errors import InvalidConstraintError, UnsupportedConstraintError
from draftline.structured.json_schema import json_schema_language

DATA = Path(__file__).resolve().parents[3].parent / "shared" / "data"
SCHEMAS = sorted((DATA / "schemas").glob("*.json"))
SUITE = sorted((DATA / "jsts").glob("*.json"))


def spellings(value: Any) -> set[str]:
    return {
        json.dumps(value, separators=(",", ":")),
        json.dumps(value),
        json.dumps(value, indent=2),
        json.dumps(value, indent=4),
        json.dumps(value, ensure_ascii=False),
    }


def verdict(schema: Any, tests: list[dict[str, Any]]) -> str:
    """The outcome: "exact", "refused", or "incomplete" if a valid value is rejected. An accepted invalid one fails."""
    try:
        walker = Walker.of_language(json_schema_language(json.dumps(schema)))
    except UnsupportedConstraintError:
        return "refused"
    except InvalidConstraintError as error:
        nothing = "no value matches" in str(error) and not any(test["valid"] for test in tests)
        return "exact" if nothing else "refused"
    complete = True
    for test in tests:
        for text in spellings(test["data"]):
            accepted = walker.accepts(text)
            assert test["valid"] or not accepted, text
            complete = complete and accepted == test["valid"]
    return "exact" if complete else "incomplete"


@pytest.mark.parametrize(
    "chosen", [SCHEMAS[::4], pytest.param(SCHEMAS, marks=pytest.mark.slow)], ids=["every fourth", "all"]
)
@pytest.mark.skipif(not SCHEMAS, reason=f"no schemas in {DATA / 'schemas'}")
def test_real_schemas(chosen: list[Path]) -> None:
    verdicts = Counter()
    for path in chosen:
        case = json.loads(path.read_text())
        verdicts[verdict(case["schema"], case["tests"])] += 1
    assert verdicts["incomplete"] == 0
    assert verdicts["exact"] >= 0.99 * len(chosen), verdicts


@pytest.mark.skipif(not SUITE, reason=f"no official test suite in {DATA / 'jsts'}")
def test_official_suite() -> None:
    verdicts: dict[str, Counter[str]] = {}
    for path in SUITE:
        for group in json.loads(path.read_text()):
            verdicts.setdefault(path.stem, Counter())[verdict(group["schema"], group["tests"])] += 1
    # Formats are enforced here; in the suite's draft they are annotations by default.
    assert [name for name, found in verdicts.items() if found["incomplete"]] == ["format"]
    assert sum(found["exact"] for found in verdicts.values()) >= 341, verdicts
