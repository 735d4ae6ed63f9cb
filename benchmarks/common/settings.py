"""The engine's options that ``--set OPTION=VALUE`` and its like give a benchmark."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import yaml


def add_settings(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Add ``--set``, an option with this meaning, which may be given again."""
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help=f"{meaning}; repeatable")


def engine_options(
    settings: Sequence[str], argument: str = "--set", own: Mapping[str, str] = MappingProxyType({})
) -> dict[str, object]:
    """The options by name; values are YAML.

    Args:
        settings: what was given.
        argument: the argument that gave it, for errors.
        own: the options that the benchmark sets itself, with what to do instead, or the reason.

    Raises:
        ValueError: a setting has another form, comes twice, or is the benchmark's own.
    """
    options: dict[str, object] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f"{argument} {setting}: expected OPTION=VALUE")
        if name in own:
            raise ValueError(f"{argument} {name}: {own[name]}")
        if name in options:
            raise ValueError(f"{argument} {name}: is set twice")
        options[name] = yaml.safe_load(value)
    return options
