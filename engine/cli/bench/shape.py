"""The engine of a shape: random weights in a model's sizes, for measurements that do not depend on their values."""

from __future__ import annotations

from pathlib import Path

from draftline.engine.config import EngineConfig
from draftline.engine.errors import UsageError


def engine_of_shape(shape: str, engine: EngineConfig, folder: Path) -> EngineConfig:
    """The options of an engine with random weights in a shape, whose files are written to ``folder``.

    Raises:
        UsageError: there is no such shape, or the options name a model.
    """
    from draftline.engine.bench.contenders.engines import BenchmarkModel  # imports torch, which takes seconds
    from draftline.engine.bench.contenders.shapes import find_shape

    if engine.model_fields_set & {"model", "load_format"}:
        raise UsageError("--shape: takes random weights; give neither --model nor --load-format with it")
    try:
        model = BenchmarkModel.of_shape(shape, find_shape(shape), folder)
    except ValueError as error:
        raise UsageError(f"--{error}") from error
    given = engine.model_dump(exclude_unset=True)
    return EngineConfig.model_validate({**given, "model": model.checkpoint, "load_format": "dummy"})
