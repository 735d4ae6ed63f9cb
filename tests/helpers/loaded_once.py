"""Weights that several engines of one test module share, since loading them takes most of an engine's start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from draftline.models.families import build_model
from draftline.models.model import Model


@contextmanager
def loaded_once() -> Iterator[None]:
    """Let engines that start in this context have the first one's model.

    They must ask for the same model and type, and take turns: no two may run steps at the same time.
    """
    models: list[Model] = []

    def load(*arguments: Any) -> Model:
        if not models:
            models.append(build_model(*arguments))
        return models[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("draftline.engine.build.build_model", load)
        yield
