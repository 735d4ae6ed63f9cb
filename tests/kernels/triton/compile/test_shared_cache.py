"""The cache of compiled modules, as processes use it that start at the same time."""

from __future__ import annotations

import errno
import importlib
import os
import sysconfig
from pathlib import Path

import pytest
from triton import knobs
from triton.runtime.cache import FileCacheManager, get_cache_manager

import draftline.kernels.triton
from draftline.kernels.triton.compile.shared_cache import SharedCache, share_cache

MODULE = f"launcher{sysconfig.get_config_var('EXT_SUFFIX')}"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))
    monkeypatch.setattr(knobs.cache, "manager_class", None)
    return tmp_path


def test_the_first_module_stays_though_a_second_process_has_built_it_too(folder: Path) -> None:
    one, two = SharedCache("key"), SharedCache("key")
    assert one.get_file(MODULE) is None
    assert two.get_file(MODULE) is None
    path = one.put(b"first", MODULE)
    inode = os.stat(path).st_ino
    assert two.put(b"second", MODULE) == path
    assert Path(path).read_bytes() == b"first"
    assert os.stat(path).st_ino == inode
    assert [file.name for file in (folder / "key").iterdir()] == [MODULE]
    assert SharedCache("key").get_file(MODULE) == path


def test_a_module_that_does_not_load_is_replaced() -> None:
    SharedCache("key").put(b"broken", MODULE)
    cache = SharedCache("key")
    assert cache.get_file(MODULE) is not None
    assert Path(cache.put(b"mended", MODULE)).read_bytes() == b"mended"


def test_other_files_are_triton_s_own() -> None:
    one, two = SharedCache("key"), SharedCache("key")
    one.put("{}", "kernel.json")
    assert Path(two.put("[]", "kernel.json")).read_text() == "[]"


def test_a_file_system_without_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", link)
    assert Path(SharedCache("key").put(b"module", MODULE)).read_bytes() == b"module"


def test_the_cache_is_shared_before_any_kernel_is_compiled() -> None:
    """A rank's first kernel is that of an exchange, before it has operations."""
    importlib.reload(draftline.kernels.triton)
    assert knobs.cache.manager_class is SharedCache


def test_another_cache_that_triton_was_told_to_use_stays() -> None:
    share_cache()
    assert isinstance(get_cache_manager("00"), SharedCache)
    knobs.cache.manager_class = FileCacheManager
    share_cache()
    assert type(get_cache_manager("00")) is FileCacheManager
