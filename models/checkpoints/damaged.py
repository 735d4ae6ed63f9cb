"""``damaged``: the error of a file that is not what its name says."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from draftline.models.errors import ModelLoadError

_POINTER = b"version https://git-lfs.github.com/spec/"
"""How the text begins that Git puts in place of a large file, until Git LFS downloads it."""


def damaged(path: Path, problem: str) -> ModelLoadError:
    """The error of a file with a problem, or of the pointer of Git LFS that stands in its place."""
    with suppress(OSError), path.open("rb") as file:
        if file.read(len(_POINTER)) == _POINTER:
            problem = "is a pointer of Git LFS in place of the file: run git lfs pull in its folder"
    return ModelLoadError(f"{path}: {problem}")
