"""``late_group``: a group of commands, each of which is imported when it is asked for.

Together they import servers, clients and benchmarks, with the libraries of all, which takes longer than most commands
run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import typer
from typer.main import get_command
from typing_extensions import override

from draftline.engine.cli.views.help import HelpCommand, HelpGroup


class _LateCommands(Mapping[str, Any]):
    """Commands by name."""

    def __init__(self, places: Mapping[str, str], groups: Mapping[str, Any]) -> None:
        """Functions that are commands, as ``module:function``, and groups that are there."""
        self._places = places
        self._names = (*places, *groups)
        self._commands: dict[str, Any] = dict(groups)  # what is imported

    @override
    def __getitem__(self, name: str) -> Any:
        if name not in self._commands:
            self._commands[name] = _load(name, self._places[name])
        return self._commands[name]

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    @override
    def __len__(self) -> int:
        return len(self._names)


def _load(name: str, place: str) -> Any:
    from draftline.engine.cli.options import command  # imports the options of all commands

    module, _, function = place.partition(":")
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    alone.command(name, cls=HelpCommand)(command(getattr(import_module(module), function)))
    return get_command(alone)


def late_group(places: Mapping[str, str]) -> type[HelpGroup]:
    """A class of groups with these commands, by name: each is a function's place, as ``module:function``."""

    class Group(HelpGroup):
        def __init__(self, **attrs: Any) -> None:
            super().__init__(**attrs)
            self.commands: Any = _LateCommands(places, self.commands)

        @override
        def list_commands(self, ctx: Any) -> list[str]:
            return list(self.commands)

    return Group
