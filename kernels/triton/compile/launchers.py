"""Loading the C modules that launch kernels, where several threads load them.

Triton builds one for the arguments of each kernel, and all have one name. Python then has one module for several files: loading
a file again returns the module that was new last, with its contents replaced by this file's. If another thread has just
loaded that module, and has not read its function yet, its kernel is launched with another kernel's arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from threading import Lock
from types import ModuleType

from triton.runtime import build

Load = Callable[[str, str], ModuleType]
"""Loads a module by its name and its file."""


def copying(load: Load) -> Load:
    """``load``, by one thread at a time, and with a module of its own for each call."""
    lock = Lock()

    @wraps(load)
    def load_copy(name: str, path: str) -> ModuleType:
        with lock:
            own = ModuleType(name)
            vars(own).update(vars(load(name, path)))
            return own

    return load_copy


@cache
def separate_launchers() -> None:
    """Let Triton load modules so in this process."""
    build._load_module_from_path = copying(build._load_module_from_path)
