"""``ToolFormat``: how a family of models writes tool calls, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How calls are written.

    All calls of an output are ``open``, the calls with ``separator`` between, and ``close``. One call is
    ``before_name``, its name, ``after_name``, its arguments and ``end``. Any of these texts may have names of special
    tokens in it, which then may write them.

    Attributes:
        name: of the format, for ``--tool-format``.
        recognised_by: texts that are all in the source of a chat template of the format; empty: no template is.
        open: before the first call.
        before_name: begins a call.
        after_name: between a call's name and its arguments.
        end: behind a call's arguments.
        separator: between two calls.
        close: behind the last call.
        trigger: in free text, calls follow where this appears. Empty: calls are the whole text, and a text that begins
            with their first character is calls.
        arguments: how arguments are written: as a JSON object, or as the keyword arguments of a Python call.
    """

    name: str
    recognised_by: tuple[str, ...]
    before_name: str
    after_name: str
    end: str
    separator: str
    open: str = ""
    close: str = ""
    trigger: str = ""
    arguments: Literal["json", "python"] = "json"

    def begin(self, tool: str) -> str:
        """What stands before the arguments of a call."""
        return f"{self.before_name}{tool}{self.after_name}"

    @property
    def first_character(self) -> str:
        """The first character of all calls."""
        return (self.open + self.before_name + "?")[0]
