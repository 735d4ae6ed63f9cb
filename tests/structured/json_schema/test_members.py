"""Objects with many members, and the order of members."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import pytest
from walk import Walker

from draftline.structured.json_schema import json_schema_language


def test_closed_objects_take_time_in_proportion_to_their_members() -> None:
    started = time.process_time()
    for required in ([], [f"p{index}" for index in range(1000)]):
        named = {f"p{index}": {"type": "string"} for index in range(1000)}
        schema = {"type": "object", "properties": named, "required": required, "additionalProperties": False}
        language = json_schema_language(json.dumps(schema), order="schema")
        assert language.not_regular == "#: its regular expression would have more than 50000 characters"
        assert len(language.grammar) < 200_000
    assert time.process_time() - started < 4


@pytest.mark.parametrize("others", [False, {"type": "null"}])
def test_optional_members_in_order_come_in_every_selection(others: Any) -> None:
    names = "abcde"
    schema = {"type": "object", "properties": {name: {"const": 1} for name in names}, "additionalProperties": others}
    language = json_schema_language(json.dumps(schema), order="schema", whitespace="compact")
    assert language.regex is not None
    forms = Walker.of_regex(language.regex), Walker.of_grammar(language.grammar)
    for form in forms:
        for count in range(6):
            for chosen in itertools.permutations(names, count):
                text = json.dumps(dict.fromkeys(chosen, 1), separators=(",", ":"))
                assert form.accepts(text) == (sorted(chosen) == list(chosen)), text
        assert form.accepts('{"b":1,"z":null}') == form.accepts('{"z":null}') == (others is not False)
        assert not form.accepts('{"z":null,"b":1}')
