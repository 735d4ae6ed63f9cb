"""``write_file``: a file of a model, whole or not at all."""

from __future__ import annotations

from pathlib import Path


def write_file(path: Path, content: bytes) -> None:
    """Write a file in place of an older one, which stays until all of the new one is written.

    Others may read it: a temporary file, or one of ``safetensors.torch.save_file``, would be its owner's alone. One
    process writes it at a time, under one name, so that the next replaces what a killed one has left: it may be large,
    and no cache evicts it. Files of caches, which several processes write at once, are those of
    `cache_files.write_whole`.

    Raises:
        OSError: it cannot be written. The error names ``path``.
    """
    unfinished = path.with_name(f"{path.name}.unfinished")
    try:
        try:
            unfinished.write_bytes(content)
            unfinished.replace(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
