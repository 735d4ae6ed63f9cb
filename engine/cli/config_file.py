"""``--config file.yaml``: options of an engine and a server by name, with dashes or underscores."""

from __future__ import annotations

from collections.abc import Container, Iterable
from pathlib import Path

import yaml

from draftline.engine.errors import UsageError, unreadable
from draftline.engine.options import Options, suggestion
from draftline.engine.server.yaml_text import RepeatedKeyError, read_yaml


def read_config_file(path: Path, models: Iterable[type[Options]], flags: Container[str] = ()) -> dict[str, object]:
    """Read the options that a file sets, by field name. The values are YAML's, and not validated.

    Args:
        path: the file.
        models: have the options that a file can set.
        flags: names of the command's own options, which only the command line can set, such as a request's sampling.

    Raises:
        UsageError: the file cannot be read, is not a mapping, or has a key that is not an option of ``models``.
    """
    models = list(models)
    known = [name for model in models for name in model.model_fields]
    aliases = {other: own for model in models for other, own in model.aliases.items()}
    foreign = {name: instead for model in models for name, instead in model.foreign.items()}
    options: dict[str, object] = {}
    for key, value in _mapping(path).items():
        name = str(key).replace("-", "_")
        name = aliases.get(name, name)
        if name not in known and name in flags:
            raise UsageError(f"{path}: {key}: is no option of an engine or a server; give it on the command line")
        if name not in known:
            explanation = f". {foreign[name]}" if name in foreign else suggestion(name, known)
            raise UsageError(f"{path}: {key}: is not an option{explanation}")
        if name in options:
            ways = "by two names" if str(key).replace("-", "_") in aliases else "with dashes and with underscores"
            raise UsageError(f"{path}: {key}: is set twice, {ways}")
        options[name] = tuple(value) if isinstance(value, list) else value  # options have no lists
    return options


def _mapping(path: Path) -> dict[object, object]:
    try:
        content = read_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {unreadable(error)}") from error
    except RepeatedKeyError as error:
        raise UsageError(f"{path}: line {error.line}: {error.key}: is set twice") from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UsageError(f"{path}: line {line}: is not YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: is not YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UsageError(f"{path}: must be a mapping of options, is a {type(content).__name__}")
    return content
