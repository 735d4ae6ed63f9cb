"""``SharedCache``: Triton's cache on disk, for engines and ranks that start at the same time.

Triton builds a C module for the arguments of each kernel and loads it from its cache. Two processes that miss a module both build
it, and the second replaces the first one's file. Python knows a loaded module by its file's inode, which it reads before it
loads. If the file is replaced in between, the number of the first inode becomes free, and a later module that gets it is
mistaken for the one that is loaded: its kernel is launched with another kernel's arguments.
"""

from __future__ import annotations

import os
import sysconfig
import uuid
from contextlib import suppress

from triton import knobs
from triton.runtime.cache import FileCacheManager
from typing_extensions import override

_MODULE = sysconfig.get_config_var("EXT_SUFFIX")


class SharedCache(FileCacheManager):  # type: ignore[misc]
    """Files of one key. A module that another process has written meanwhile is kept."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        """The arguments are those of Triton's caches."""
        super().__init__(key, override, dump)
        self._found: set[str] = set()

    @override
    def get_file(self, filename: str) -> str | None:
        path: str | None = super().get_file(filename)
        if path is not None:
            self._found.add(filename)
        return path

    @override
    def put(self, data: bytes | str, filename: str, binary: bool = True) -> str:
        # One that was found, and is put all the same, could not be loaded.
        if not filename.endswith(_MODULE) or filename in self._found:
            return str(super().put(data, filename, binary))
        own: str = super().put(data, f"{uuid.uuid4()}.{filename}", binary)
        path = os.path.join(os.path.dirname(own), filename)
        try:
            with suppress(FileExistsError):
                os.link(own, path)
        except OSError:  # a file system without links
            os.replace(own, path)
        else:
            os.unlink(own)
        return path


def share_cache() -> None:
    """Use `SharedCache` in this process, unless Triton was told to use another cache."""
    knobs.cache.manager_class = knobs.cache.manager_class or SharedCache
