"""A mark goes with Triton's cache."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from triton import knobs

from draftline.kernels.triton.compile.marks import CacheMark


def test_a_mark_goes_with_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path / "cache"))
    mark = CacheMark("an-engine")
    assert not mark.is_set()
    mark.set()
    assert CacheMark("an-engine").is_set()
    assert not CacheMark("another").is_set()
    shutil.rmtree(tmp_path / "cache")
    assert not mark.is_set()


def test_a_cache_that_cannot_be_written_has_no_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path / "file" / "cache"))
    mark = CacheMark("an-engine")
    mark.set()
    assert not mark.is_set()
