"""Where a document that is cut anywhere broke off."""

from __future__ import annotations

import json

import pytest

from draftline.engine.outputs import BrokenOff
from draftline.engine.tools.broken_json import broken_off


@pytest.mark.parametrize(
    ("text", "pointer", "rest"),
    [
        ("", "", ""),
        ("{", "", ""),
        ("[", "/0", ""),
        ('"ab', "", '"ab'),
        ('{"a', "", '"a'),
        ('{"a"', "/a", ""),
        ('{"a":', "/a", ""),
        ('{"a": 1', "/a", "1"),
        ('{"a": 1,', "", ""),
        ('{"a": 1, "b', "", '"b'),
        ('{"a": [1, "é", {"b/c": "x\\"y', "/a/2/b~1c", '"x\\"y'),
        ('{"a": [1, "é", {"b~c": tru', "/a/2/b~0c", "tru"),
        ('{"a": [1, [2], ', "/a/2", ""),
        ('{"a": {"b": [1]}, "é": -', "/é", "-"),
        ('{"a": "x", ', "", ""),
    ],
)  # fmt: skip
def test_the_innermost_value_that_is_not_finished(text: str, pointer: str, rest: str) -> None:
    assert broken_off(text) == BrokenOff(pointer, len(text.encode()) - len(rest.encode()))
    behind = f"é, ]{text}"
    assert broken_off(behind, 4) == BrokenOff(pointer, len(behind.encode()) - len(rest.encode()))


def test_every_cut_of_a_document_names_a_value_of_it() -> None:
    document = {"a": [1, {"b": ["x", None]}, -2.5], "c d": {"e": {}, "f": [[]]}, "g": 'q\\"u'}
    text = json.dumps(document, indent=1)
    for end in range(len(text)):
        found = broken_off(text[:end])
        assert found.byte_offset <= end
        value: object = document
        for name in found.pointer.split("/")[1:]:
            if isinstance(value, list):
                assert int(name) <= len(value)
                value = value[int(name)] if int(name) < len(value) else None
            else:
                assert isinstance(value, dict)
                value = value[name]
