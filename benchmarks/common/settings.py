"""``engine_options``: the engine's options that ``--set OPTION=VALUE`` and its like give a benchmark."""

from __future__ import annotations

from collections.abc import Sequence

import yaml


def engine_options(settings: Sequence[str], argument: str = "--set") -> dict[str, object]:
    """The options by name; values are YAML. Errors name the ``argument``.

    Raises:
        ValueError: a setting has another form.
    """
    options: dict[str, object] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f"{argument} {setting}: expected OPTION=VALUE")
        options[name] = yaml.safe_load(value)
    return options
