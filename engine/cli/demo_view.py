"""How the demo shows several answers at once: side by side on a terminal, as marked lines elsewhere."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from types import TracebackType
from typing import Protocol, Self

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

_LINE = 96
"""Characters after which a line of an answer is shown, though it has not ended."""


class View(Protocol):
    """Shows answers as they grow."""

    def add(self, name: str, text: str) -> None:
        """More of an answer."""
        ...

    def end(self, name: str) -> None:
        """An answer is complete."""
        ...


class PanelView:
    """A panel an answer, all live: side by side where they fit."""

    def __init__(self, console: Console, questions: Mapping[str, str]) -> None:
        """``questions`` by name, in the order to show them in."""
        self._console = console
        self._questions = questions
        self._answers = dict.fromkeys(questions, "")
        self._ended: set[str] = set()
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=12)

    def __enter__(self) -> Self:
        """Begin to show."""
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Leave the last state on the screen."""
        self._live.stop()

    def add(self, name: str, text: str) -> None:
        """See `View`."""
        self._answers[name] += text

    def end(self, name: str) -> None:
        """See `View`."""
        self._ended.add(name)

    def _render(self) -> RenderableType:
        columns = len(self._questions) if self._console.width >= 40 * len(self._questions) else 1
        width = self._console.width // columns - 1
        return Columns([self._panel(name, width) for name in self._questions], width=width)

    def _panel(self, name: str, width: int) -> Panel:
        color = "green" if name in self._ended else "yellow"
        body = Group(Text(self._questions[name], style="bold"), Text(self._answers[name]))
        return Panel(body, title=name, border_style=color, width=width)


class LineView:
    """Whole lines, each marked with its answer's name."""

    def __init__(self, console: Console, questions: Mapping[str, str]) -> None:
        """``questions`` by name, in the order to show them in."""
        self._console = console
        self._open = dict.fromkeys(questions, "")
        self._questions = questions

    def __enter__(self) -> Self:
        """Show the questions."""
        for name, question in self._questions.items():
            self._print(name, f"? {question}")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Nothing is left open."""

    def add(self, name: str, text: str) -> None:
        """See `View`."""
        *lines, rest = (self._open[name] + text).split("\n")
        for line in lines:
            self._print(name, line)
        if len(rest) > _LINE:
            *wrapped, rest = textwrap.wrap(rest, _LINE, drop_whitespace=False)
            for line in wrapped:
                self._print(name, line)
        self._open[name] = rest

    def end(self, name: str) -> None:
        """See `View`."""
        if self._open[name]:
            self._print(name, self._open[name])

    def _print(self, name: str, line: str) -> None:
        self._console.print(f"[{name}] {line.strip()}", markup=False, highlight=False, soft_wrap=True)
