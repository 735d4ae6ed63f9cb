"""Files that later processes reuse: the user's cache folders, atomic writes, and a digest of the code that made a file."""

from __future__ import annotations

import hashlib
import os
import tempfile
from functools import cache
from pathlib import Path


def user_cache_folder(name: str) -> Path | None:
    """The user's folder for one cache: ``$XDG_CACHE_HOME/draftline/<name>``, by default in ``~/.cache``.

    Returns:
        None for a user without a home folder, such as a number that a container runs as.
    """
    bases = (os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache"))
    return next((Path(base, "draftline", name) for base in bases if os.path.isabs(base)), None)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file, and its folder if need be. Readers find the old content or the new, never a part.

    Several processes may write it at once, each under a name of its own. The name ends as the file's does, so that the cache
    evicts what a killed process has left.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.NamedTemporaryFile("wb", dir=path.parent, suffix=path.suffix, delete=False) as file:
        try:
            file.write(content)
            file.flush()
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


@cache
def code_digest(folders: tuple[Path, ...]) -> bytes:
    """A digest of all Python files in these folders."""
    digest = hashlib.sha256()
    for folder in folders:
        for source in sorted(folder.rglob("*.py")):
            digest.update(source.read_bytes())
    return digest.digest()
