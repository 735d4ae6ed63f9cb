"""The layout of the sources: folders stay small enough to be looked through."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAX_FILES = 18


@pytest.mark.parametrize("folder", ["benchmarks", "engine", "kernels", "models", "quant", "spec", "structured"])
def test_no_folder_has_more_files_than_a_reader_keeps_in_view(folder: str) -> None:
    files = [path for path in (ROOT / folder).rglob("*.py") if path.name != "__init__.py"]
    crowded = {name: count for name, count in Counter(path.parent for path in files).items() if count > MAX_FILES}
    assert files
    assert not crowded


def test_every_package_says_what_it_is_for() -> None:
    folders = ("engine", "kernels", "models", "quant", "spec", "structured")
    packages = [path for folder in folders for path in (ROOT / folder).rglob("__init__.py")]
    assert len(packages) > len(folders)
    assert [path for path in packages if not path.read_text().startswith('"""')] == []
