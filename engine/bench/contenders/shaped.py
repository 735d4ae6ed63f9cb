"""``shaped``: an engine's configuration for random weights in a public shape, instead of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from draftline.engine.bench.contenders.shapes import SHAPES, find_shape
from draftline.engine.config import EngineConfig
from draftline.engine.errors import UsageError, temporary_folder
from draftline.engine.options import flag

SHAPE_HELP = f"random weights in the shape of {', '.join(SHAPES)}, or of a config.json, instead of --model"


def check_has_no_model(config: EngineConfig) -> None:
    """Check that the options leave the model to a shape.

    Raises:
        UsageError: they name a model, or the format of its weights.
    """
    if given := [name for name in ("model", "load_format") if name in config.model_fields_set]:
        raise UsageError(f"{flag(given[0])} and --shape: set one of them")


@contextmanager
def shaped(config: EngineConfig, shape: str | None) -> Iterator[EngineConfig]:
    """The configuration with a folder of the shape as its model, which lasts as long as the context.

    Raises:
        UsageError: there is no such shape, or a model or the format of its weights is given as well.
    """
    if shape is None:
        yield config
        return
    check_has_no_model(config)
    from draftline.engine.bench.contenders.engines import BenchmarkModel  # imports torch, which takes seconds

    try:
        found = find_shape(shape)
    except ValueError as error:
        raise UsageError(f"--shape: {error}") from None
    with temporary_folder() as folder:
        model = BenchmarkModel.of_shape(shape, found, folder)
        given = config.model_dump(exclude_unset=True)
        yield EngineConfig.model_validate({**given, "model": model.checkpoint, "load_format": "dummy"})
