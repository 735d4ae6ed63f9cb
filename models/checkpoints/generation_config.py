"""The sampling that a model's authors recommend: ``generation_config.json`` in an HF folder, or keys of a GGUF file."""

from __future__ import annotations

from pathlib import Path

from draftline.models.checkpoints.json_file import read_json_object_if_there
from draftline.models.checkpoints.resolve import ModelSource, SourceKind
from draftline.models.errors import ModelLoadError

_FIELDS = {
    "temperature": "temp",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
"""The fields of generation_config.json, and llama.cpp's names for them, which follow the place."""

PLACES = {SourceKind.FOLDER: "generation_config.json", SourceKind.GGUF: "general.sampling"}
"""Where the recommendations are, for error messages: a file of a folder, or the prefix of a GGUF file's keys."""


def recommended_sampling(source: ModelSource) -> dict[str, float]:
    """Read a model's ``temperature``, ``top_p``, ``top_k``, ``min_p`` and ``repetition_penalty``, as far as given.

    Raises:
        ModelLoadError: the file is damaged, or one of the fields is not a number.
    """
    if source.kind is SourceKind.GGUF:
        return _of_gguf(source.path)
    path = source.path / PLACES[source.kind]
    recommended: dict[str, float] = {}
    for name, value in read_json_object_if_there(path).items():
        if name not in _FIELDS or value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelLoadError(f"{path}: {name}: must be a number, not {value!r}")
        recommended[name] = value
    return recommended


def _of_gguf(path: Path) -> dict[str, float]:
    from draftline.models.gguf.fields import GGUFFields  # slow to import, and only GGUF files need it
    from draftline.models.gguf.file import open_gguf

    fields = GGUFFields(open_gguf(path))
    keys = {name: f"{PLACES[SourceKind.GGUF]}.{key}" for name, key in _FIELDS.items()}
    return {name: fields.number(key) for name, key in keys.items() if fields.has(key)}
