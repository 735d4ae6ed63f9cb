"""The files of results."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftline.engine.bench.lines import result_lines


def test_a_run_without_a_result_leaves_no_file(tmp_path: Path) -> None:
    path, link, before = tmp_path / "results.jsonl", tmp_path / "link", tmp_path / "before"
    link.symlink_to(path)
    before.touch()
    for output in (path, link, before):
        with pytest.raises(KeyboardInterrupt), result_lines(output, {}):
            raise KeyboardInterrupt
    assert (path.exists(), link.is_symlink(), before.exists()) == (False, True, True)
    with result_lines(link, {"benchmark": "load"}) as lines:
        lines.write({"tokens_per_s": 1.0})
    with result_lines(path, {}):
        pass
    assert path.read_text() == '{"format": 1, "benchmark": "load", "tokens_per_s": 1.0}\n'
