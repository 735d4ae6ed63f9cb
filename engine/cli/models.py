"""Finding models before torch is imported, so that a wrong name is reported at once."""

from __future__ import annotations

from draftline.engine.config import EngineConfig
from draftline.models.checkpoints.resolve import MODEL_FILES, TOKENIZER_FILES, ModelSource, resolve_model


def find_models(engine: EngineConfig) -> ModelSource:
    """Find the files of every model that the options name, and download those of hub ids.

    Returns:
        The source of the model itself.

    Raises:
        ModelLoadError: a model, its tokenizer or its draft model cannot be found.
    """
    files = TOKENIZER_FILES if engine.load_format == "dummy" else MODEL_FILES
    source = resolve_model(engine.model, files)
    if engine.tokenizer is not None:
        resolve_model(engine.tokenizer, TOKENIZER_FILES)
    if engine.draft_model is not None:
        resolve_model(engine.draft_model, files)
    return source
