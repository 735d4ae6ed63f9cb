"""The layout of ``--help``: panels by topic, with an option's name and value on the left and its meaning on the right.

Typer's own layout has columns for types, short names and negated names. At 80 columns they leave no room for whole
names.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console, RenderableType
from rich.markdown import Markdown
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from typer import TyperException
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typing_extensions import override

_NAME_STYLE = "bold cyan"
_VALUE_STYLE = "yellow"
_NOTE_STYLE = "dim"


class HelpCommand(TyperCommand):
    """A command with this module's ``--help``. Each error of its usage has its context."""

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except TyperException as raised:
            error: Any = raised
            if getattr(error, "ctx", ctx) is None:  # typer leaves it out where an option lacks its value
                error.ctx = ctx
            raise

    @override
    def format_help(self, ctx: Any, formatter: Any) -> None:
        console = Console()
        _print_description(console, self.get_usage(ctx), self.help)
        for title, rows in _panels(self, ctx).items():
            console.print(_panel(title, rows))


class HelpGroup(TyperGroup):
    """A group of commands with this module's ``--help``."""

    @override
    def format_help(self, ctx: Any, formatter: Any) -> None:
        console = Console()
        _print_description(console, self.get_usage(ctx), self.help)
        commands = [(name, command) for name in self.list_commands(ctx) if (command := self.get_command(ctx, name))]
        summaries = [(Text(name, _NAME_STYLE), Text(_summary(command.help))) for name, command in commands]
        for title, rows in {**_panels(self, ctx), "Commands": summaries}.items():
            console.print(_panel(title, rows))


_Row = tuple[Text, Text]
"""A name for the left column, and its meaning for the right."""


def _print_description(console: Console, usage: str, description: str | None) -> None:
    console.print(Padding(Text(usage, "bold"), (1, 1)))
    if description:
        console.print(Padding(Markdown(inspect.cleandoc(description)), (0, 1, 1, 1)))


def _panels(command: TyperCommand | TyperGroup, ctx: Any) -> Mapping[str, Sequence[_Row]]:
    """The rows of each panel. A command's own arguments and options come first."""
    panels: dict[str, list[_Row]] = defaultdict(list, {"Arguments": [], "Options": []})
    for parameter in command.get_params(ctx):
        if isinstance(parameter, TyperArgument):
            panels["Arguments"].append((Text(parameter.display_name_raw, _NAME_STYLE), _meaning(_described(parameter))))
        elif isinstance(parameter, TyperOption) and not parameter.hidden:
            panels[parameter.rich_help_panel or "Options"].append((_name(parameter), _meaning(_described(parameter))))
    return {title: rows for title, rows in panels.items() if rows}


def _name(option: TyperOption) -> Text:
    name = Text(", ".join(option.opts), _NAME_STYLE)
    return name if option.is_flag else name.append(f" {option.metavar or 'TEXT'}", _VALUE_STYLE)


def _described(parameter: TyperArgument | TyperOption) -> str:
    """A parameter's help, then the bounds and the default that Typer knows.

    An option of a model has them in its help.
    """
    notes = [_bounds(parameter)]
    is_flag = isinstance(parameter, TyperOption) and parameter.is_flag
    if parameter.show_default and parameter.default is not None and not is_flag:
        notes.append(f"default: {_value(parameter.default)}")
    shown = "; ".join(note for note in notes if note)
    return f"{parameter.help} [{shown}]" if shown else f"{parameter.help or ''}"


def _bounds(parameter: TyperArgument | TyperOption) -> str:
    lowest, highest = parameter.min, parameter.max
    if lowest is None:
        return "" if highest is None else f"at most {_value(highest)}"
    return f"at least {_value(lowest)}" if highest is None else f"{_value(lowest)} to {_value(highest)}"


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _meaning(description: str | None) -> Text:
    """A description; notes in brackets at its end are dimmed."""
    text, bracket, notes = (description or "").partition(" [")
    return Text(text).append(bracket + notes, _NOTE_STYLE)


def _panel(title: str, rows: Sequence[_Row]) -> RenderableType:
    table = Table(box=None, show_header=False, expand=True, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return Panel(table, title=title, title_align="left", border_style="dim", box=box.ROUNDED)


def _summary(description: str | None) -> str:
    """The first paragraph of a command's help, on one line."""
    return " ".join(inspect.cleandoc(description or "").partition("\n\n")[0].split())
