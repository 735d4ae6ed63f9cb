from __future__ import annotations

import os
from pathlib import Path

import pytest

from draftline.structured.cache_files import code_digest, user_cache_folder, write_whole
from draftline.structured.table_cache import cache_folder


def test_the_folder_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert user_cache_folder("constraints") == Path("/somewhere/draftline/constraints")
    for unusable in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", unusable)
        assert user_cache_folder("constraints") == Path.home() / ".cache/draftline/constraints"


def test_a_user_without_a_home_has_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2_000_000_000)  # no user's number
    assert user_cache_folder("constraints") is None
    assert cache_folder("auto") is None
    assert cache_folder("none") is None
    assert cache_folder("/named") == Path("/named")


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "made" / "one.txt"
    for content in (b"old", b"new"):
        write_whole(path, content)
        assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_an_interrupted_write_leaves_the_older_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "one.txt"
    write_whole(path, b"old")

    def interrupt(*paths: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, b"new")
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"old"]


def test_a_digest_follows_the_code_alone(tmp_path: Path) -> None:
    code = tmp_path / "package" / "inner" / "module.py"
    code.parent.mkdir(parents=True)
    digests = []
    for text in ("a = 1", "a = 2"):
        code.write_text(text)
        code.with_suffix(".txt").write_text(text)
        code_digest.cache_clear()
        digests.append(code_digest((tmp_path,)))
        code.with_suffix(".txt").write_text("other")
        code_digest.cache_clear()
        assert code_digest((tmp_path,)) == digests[-1]
    assert digests[0] != digests[1]


def test_the_folder_of_an_option_may_begin_with_the_user_s_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert cache_folder("~/tables") == Path("/home/ada/tables")
    assert cache_folder("tables") == Path("tables")
