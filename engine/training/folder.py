"""The folder of a training: whether it may be written, and ``training.json``, the record of how its files were made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from draftline.engine.config import EngineConfig
from draftline.engine.errors import UsageError
from draftline.engine.training.config import TrainDraftConfig
from draftline.models.checkpoints.json_file import read_json_object_if_there
from draftline.models.checkpoints.write_file import write_file
from draftline.models.errors import ModelLoadError

RECORD = "training.json"
_OF_A_MODEL = ("config.json", "*.safetensors", "*.gguf")


def check_folder(output: Path, training: TrainDraftConfig) -> None:
    """Check that a training replaces no files but those of an earlier training of its kind.

    Raises:
        UsageError: the folder has the files of another model, such as the target itself.
    """
    files = sorted(path.name for pattern in _OF_A_MODEL for path in output.glob(pattern))
    if not files:
        return
    try:
        record = read_json_object_if_there(output / RECORD)
    except ModelLoadError as error:
        raise UsageError(str(error)) from error
    options = record.get("training")
    if not isinstance(options, dict):
        raise UsageError(f"{output}: has another model's {files[0]}, which this training would replace")
    kind = options.get("kind", "model")
    if kind != training.kind:
        raise UsageError(f"{output}: has a training of --kind {kind}, which this one would replace")


def make_folder(output: Path) -> None:
    """Make the folder, and find out whether it can be written.

    Raises:
        UsageError: it cannot be made or written.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{output}: cannot be created: {error.strerror}") from error
    probe = output / f"{RECORD}.unfinished"
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UsageError(f"{output}: cannot be written: {error.strerror}") from error


def write_record(
    output: Path,
    training: TrainDraftConfig,
    engine: EngineConfig,
    layers: list[int],
    answer_tokens: int,
    results: Mapping[str, object],
) -> None:
    """Write the record: before a training, to mark the folder as its own, and at its end with its results."""
    record = {
        "target": engine.model,
        "layers": layers,
        "answer_tokens": answer_tokens,
        "training": training.model_dump(mode="json", exclude={"samples", "layers", "stop_after"}),
        **results,
    }
    write_file(output / RECORD, (json.dumps(record, indent=2) + "\n").encode())
