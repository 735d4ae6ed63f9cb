"""A file that cannot be written whole leaves the older one as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftline.models.checkpoints.write_file import write_file


def test_a_full_disk_keeps_the_older_file_and_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_file(path, b"old")
    (tmp_path / "model.safetensors.unfinished").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left on device.*/model\.safetensors'"):
        write_file(path, b"new")
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"old"]
    write_file(path, b"new")
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"new"]
