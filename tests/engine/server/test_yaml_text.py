"""YAML in which each key is set once."""

from __future__ import annotations

import pytest

from draftline.engine.server.yaml_text import RepeatedKeyError, read_yaml


def test_a_key_may_override_a_merged_one() -> None:
    assert read_yaml("a: &a {k: 1, l: 2}\nb: {<<: *a, k: 3}") == {"a": {"k": 1, "l": 2}, "b": {"k": 3, "l": 2}}


@pytest.mark.parametrize("text", ["a: 1\na: 1", "- b: {a: 1,\n  a: 2}", "a: 1\n'a': 2"])
def test_a_key_that_is_there_twice_is_named_with_its_line(text: str) -> None:
    with pytest.raises(RepeatedKeyError) as caught:
        read_yaml(text)
    assert (caught.value.key, caught.value.line) == ("a", 2)
