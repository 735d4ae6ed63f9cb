"""The sampling that a model's authors recommend: ``generation_config.json`` in an HF folder."""

from __future__ import annotations

from draftline.models.checkpoints.json_file import read_json_object_if_there
from draftline.models.checkpoints.resolve import ModelSource, SourceKind
from draftline.models.errors import ModelLoadError

_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def recommended_sampling(source: ModelSource) -> dict[str, float]:
    """Read a model's ``temperature``, ``top_p``, ``top_k``, ``min_p`` and ``repetition_penalty``, as far as given.

    A GGUF file has none.

    Raises:
        ModelLoadError: the file is damaged, or one of the fields is not a number.
    """
    if source.kind is not SourceKind.FOLDER:
        return {}
    path = source.path / "generation_config.json"
    recommended: dict[str, float] = {}
    for name, value in read_json_object_if_there(path).items():
        if name not in _FIELDS or value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelLoadError(f"{path}: {name}: must be a number, not {value!r}")
        recommended[name] = value
    return recommended
