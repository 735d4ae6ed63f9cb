"""Where Python keeps compiled modules. Compiling torch's takes longer than all the rest of its import."""

from __future__ import annotations

import os
import sys
from importlib.util import cache_from_source, find_spec
from pathlib import Path

from draftline.structured.cache_files import user_cache_folder


def keep_compiled_modules() -> None:
    """Let this process and its children keep them in the user's cache folder, if those of torch are kept nowhere else.

    pip compiles modules when it installs them. Where nothing has, and the installation is another user's or
    ``PYTHONDONTWRITEBYTECODE`` is set, as in many images, every start would compile them.
    """
    if sys.pycache_prefix is not None or _are_kept("torch"):
        return
    folder = user_cache_folder("modules")
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:  # nothing can be written there
        return
    if not os.access(folder, os.W_OK):
        return
    sys.pycache_prefix, sys.dont_write_bytecode = str(folder), False
    os.environ["PYTHONPYCACHEPREFIX"] = str(folder)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def _are_kept(package: str) -> bool:
    """Whether a package's compiled modules are beside its sources, or will be after its import."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return True  # it has none
    will_be = not sys.dont_write_bytecode and os.access(Path(spec.origin).parent, os.W_OK)
    return will_be or Path(cache_from_source(spec.origin)).exists()
