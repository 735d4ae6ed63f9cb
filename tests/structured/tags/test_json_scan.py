"""Where JSON documents end."""

from __future__ import annotations

import pytest

from draftline.structured.tags import json_scan
from draftline.structured.tags.json_scan import JsonScan


@pytest.mark.parametrize("document", ['{"a": [1, "]", "\\\\"]}', "[[]]", '"é\\""', "[" * 3000 + "]" * 3000])
@pytest.mark.parametrize("size", [1, 3, 7])
def test_a_document_ends_where_its_brackets_and_quotes_do(document: str, size: int) -> None:
    scan, taken = JsonScan(), 0
    text = document + ", "
    for start in range(0, len(text), size):
        scan, count = scan.read(text[start : start + size])
        taken += count
        if scan.complete:
            break
    assert taken == len(document)


def test_deep_positions_are_not_kept() -> None:
    json_scan._known.cache_clear()
    scan = JsonScan()
    for _ in range(5000):
        scan, _ = scan.read("[")
    assert len(scan.open) == 5000
    assert not scan.lasts
    assert json_scan._known.cache_info().currsize <= json_scan._MAX_KEPT_DEPTH + 1
