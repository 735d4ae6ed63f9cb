"""Where compiled modules are kept, with a package in the place of torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from draftline.engine.process import bytecode

PROGRAM = """
import sys
from draftline.engine.process.bytecode import keep_compiled_modules
keep_compiled_modules()
import torch, subprocess
subprocess.run([sys.executable, "-c", "import torch.child"], check=True)
"""


def run(folder: Path, **variables: str) -> list[str]:
    """Import the package in a process and in its child; the compiled modules of it that are kept then, by their folder."""
    package = folder / "packages" / "torch"
    package.mkdir(parents=True, exist_ok=True)
    for name in ("__init__", "child"):
        (package / f"{name}.py").write_text("")
    kept = {"PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"}
    environment = {name: value for name, value in os.environ.items() if name not in kept}
    path = os.pathsep.join([str(package.parent), *sys.path])
    environment |= {"PYTHONPATH": path, "XDG_CACHE_HOME": str(folder / "cache"), **variables}
    subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True)
    found = [path for path in folder.rglob("*.pyc") if path.parent.name in ("torch", "__pycache__")]
    return sorted(
        f"{path.relative_to(folder).parts[0]}: {path.name.partition('.')[0]}" for path in found if "torch" in path.parts
    )


def test_they_are_in_the_cache_where_python_writes_none(tmp_path: Path) -> None:
    assert run(tmp_path, PYTHONDONTWRITEBYTECODE="1") == ["cache: __init__", "cache: child"]
    assert (tmp_path / "cache" / "draftline" / "modules").stat().st_mode & 0o777 == 0o700


def test_they_stay_beside_the_sources_where_python_writes_them(tmp_path: Path) -> None:
    assert run(tmp_path) == ["packages: __init__", "packages: child"]


def test_they_stay_where_the_installer_has_written_them(tmp_path: Path) -> None:
    run(tmp_path)
    assert run(tmp_path, PYTHONDONTWRITEBYTECODE="1") == ["packages: __init__", "packages: child"]


def test_a_folder_that_the_user_has_chosen_is_used(tmp_path: Path) -> None:
    chosen = run(tmp_path, PYTHONPYCACHEPREFIX=str(tmp_path / "chosen"))
    assert chosen == ["chosen: __init__", "chosen: child"]


def test_a_user_without_a_home_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bytecode, "user_cache_folder", lambda name: None)
    monkeypatch.setattr(bytecode, "_are_kept", lambda package: False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    bytecode.keep_compiled_modules()
    assert sys.pycache_prefix is None


def test_a_cache_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    assert run(tmp_path, PYTHONDONTWRITEBYTECODE="1") == []
