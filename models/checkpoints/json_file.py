"""Reading the JSON files of a model folder, with errors that name the file."""

from __future__ import annotations

import json
from pathlib import Path

from draftline.models.checkpoints.damaged import damaged
from draftline.models.errors import ModelLoadError


def read_json_object(path: Path) -> dict[str, object]:
    """The object in a JSON file.

    Raises:
        ModelLoadError: the file is missing, unreadable, not JSON, or not an object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelLoadError(f"{path}: no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"{path}: cannot be read: {error}") from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise damaged(path, f"is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path}: holds a {type(value).__name__}, not an object")
    return value


def read_json_object_if_there(path: Path) -> dict[str, object]:
    """`read_json_object`, or an empty dict if the file does not exist."""
    return read_json_object(path) if path.exists() else {}
