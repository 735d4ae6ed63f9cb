"""The demo's display of several answers at once: side by side on a terminal, as marked lines elsewhere."""

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
from typing_extensions import override

_LINE = 96
"""Max characters of a line."""


class View(Protocol):
    """Shows answers as they grow."""

    def add(self, name: str, text: str) -> None:
        """Append text to an answer."""
        ...

    def end(self, name: str) -> None:
        """Mark an answer as complete."""
        ...


class PanelView(View):
    """One live panel per answer, side by side where they fit."""

    def __init__(self, console: Console, questions: Mapping[str, str]) -> None:
        """Show ``questions``, which are by name and in their order."""
        self._console = console
        self._questions = questions
        self._answers = dict.fromkeys(questions, "")
        self._ended: set[str] = set()
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=12)

    def __enter__(self) -> Self:
        """Start the display."""
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Leave the last state on the screen."""
        self._live.stop()

    @override
    def add(self, name: str, text: str) -> None:
        self._answers[name] += text

    @override
    def end(self, name: str) -> None:
        self._ended.add(name)

    def _render(self) -> RenderableType:
        columns = len(self._questions) if self._console.width >= 40 * len(self._questions) else 1
        width = self._console.width // columns - 1
        return Columns([self._panel(name, width) for name in self._questions], width=width)

    def _panel(self, name: str, width: int) -> Panel:
        color = "green" if name in self._ended else "yellow"
        body = Group(Text(self._questions[name], style="bold"), Text(self._answers[name]))
        return Panel(body, title=name, border_style=color, width=width)


class LineView(View):
    """Whole lines, each marked with its answer's name."""

    def __init__(self, console: Console, questions: Mapping[str, str]) -> None:
        """Show ``questions``, which are by name and in their order."""
        self._console = console
        self._unprinted = dict.fromkeys(questions, "")
        self._questions = questions

    def __enter__(self) -> Self:
        """Show the questions."""
        for name, question in self._questions.items():
            self._print(name, f"? {question}")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Leave the printed lines."""

    @override
    def add(self, name: str, text: str) -> None:
        *lines, rest = (self._unprinted[name] + text).split("\n")
        for line in lines:
            self._print(name, line)
        if len(rest) > _LINE:
            *wrapped, rest = textwrap.wrap(rest, _LINE, drop_whitespace=False)
            for line in wrapped:
                self._print(name, line)
        self._unprinted[name] = rest

    @override
    def end(self, name: str) -> None:
        if self._unprinted[name]:
            self._print(name, self._unprinted[name])

    def _print(self, name: str, line: str) -> None:
        self._console.print(f"[{name}] {line.strip()}", markup=False, highlight=False, soft_wrap=True)
