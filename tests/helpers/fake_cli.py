"""The draftline command with the fake engine in the place of every model.

A model called ``slow.gguf`` loads for ten minutes.
One called ``hanging.gguf`` never ends a step, also when it is closed, and the server does not wait long for it.
"""

from __future__ import annotations

import sys
import threading
import time
import types
from typing import TYPE_CHECKING

from draftline.engine import cli
from draftline.engine.cli import serve

if TYPE_CHECKING:
    from fake_engine import FakeEngine

    from draftline.engine.config import EngineConfig


def start_engine(config: EngineConfig, **_: object) -> FakeEngine:
    if config.model.endswith("slow.gguf"):
        time.sleep(600)
    from fake_engine import FakeEngine  # imports much that a command without an engine does not

    engine = FakeEngine(step_s=0.01)
    if config.model.endswith("hanging.gguf"):
        engine.hold()
        engine.close = threading.Event().wait  # type: ignore[assignment]
        serve.CLOSE_S = 0.1
    return engine


def install() -> None:
    """Replace the modules that load models or start processes for them, in this process or in another."""
    names = ("threaded_engine", "process.replicas")
    here, elsewhere = (types.ModuleType(f"draftline.engine.{name}") for name in names)
    here.start_engine = start_engine  # type: ignore[attr-defined]
    elsewhere.start_replicas = lambda *_, **__: []  # type: ignore[attr-defined]
    sys.modules |= {module.__name__: module for module in (here, elsewhere)}


if __name__ == "__main__":
    install()
    cli.main()
