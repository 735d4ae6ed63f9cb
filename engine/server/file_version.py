"""``file_version``: whether a file that the server reads again has changed."""

from __future__ import annotations

from pathlib import Path

FileVersion = tuple[int, int, int]
"""Differs between two states of one path."""


def file_version(path: Path) -> FileVersion:
    """The version of the file at ``path``, which differs after a change of its contents or its permissions.

    The time of modification alone does not tell: some tools keep it, and a file that becomes readable has an old one.

    Raises:
        OSError: there is no such file.
    """
    stat = path.stat()
    return (stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
