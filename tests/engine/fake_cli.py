"""The draftline command with the fake engine in the place of every model; a model called "missing" cannot be loaded."""

from __future__ import annotations

import sys
import time
import types

from fake_engine import FakeEngine

from draftline.engine import cli
from draftline.engine.config import EngineConfig
from draftline.models.errors import ModelLoadError


def start_engine(config: EngineConfig) -> FakeEngine:
    if config.model == "missing":
        raise ModelLoadError("missing: no such file or folder")
    if config.model == "slow":
        time.sleep(60)
    return FakeEngine(step_s=0.01)


def install() -> None:
    """Replace the module that loads models, which nothing else of the command line imports."""
    fake = types.ModuleType("draftline.engine.async_engine")
    fake.start_engine = start_engine  # type: ignore[attr-defined]
    sys.modules[fake.__name__] = fake


if __name__ == "__main__":
    install()
    cli.main()
