"""``CacheMark``: a mark in Triton's cache on disk, which goes when the cache goes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from triton import knobs


class CacheMark:
    """Says that the cache has all kernels of something. A mark that is wrong costs time: the first launch compiles its kernel."""

    def __init__(self, name: str) -> None:
        """The mark of what has this name, which is a file's."""
        self._path = Path(knobs.cache.dir) / f"draftline-{name}"

    def is_set(self) -> bool:
        """Whether `set` was called, in this process or another one."""
        return self._path.exists()

    def set(self) -> None:
        """Set it. A cache that cannot be written has no marks."""
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch()
