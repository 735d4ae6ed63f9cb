"""``ChatPlan``: how a request is constrained, and how its outputs are read. `engine/tools/plan.py` makes it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from draftline.engine.chat.tool_format import ToolFormat
from draftline.engine.errors import InvalidRequestError
from draftline.engine.params import Constraint


@dataclass(frozen=True, slots=True)
class Reading:
    """How the outputs of a chat are taken apart. It is plain data, which moves between processes.

    Attributes:
        tool_format: the format of calls; None if there are none.
        calls: the tool of each tag, by the tag's name.
        trigger: in free text, calls begin with it; empty if they can only begin at the answer's beginning.
        begins: what stands before the first arguments of each tool.
        reasoning: the marks of the reasoning; None without any.
        is_open: whether the prompt has the begin mark already.
        only_calls: whether there is no answer besides calls.
        or_json: whether the answer without calls is JSON. Calls begin as no JSON does.
    """

    tool_format: ToolFormat | None = None
    calls: tuple[tuple[str, str], ...] = ()
    trigger: str = ""
    begins: tuple[str, ...] = ()
    reasoning: tuple[str, str] | None = None
    is_open: bool = False
    only_calls: bool = False
    or_json: bool = False


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """How a chat's request is constrained and read.

    Attributes:
        constraint: of the whole output; None for any text.
        reading: of the outputs; None if their text is the answer.
        places: pairs of a path in the constraint's errors and the path in the request that it stands for.
    """

    constraint: Constraint[Any] | None
    reading: Reading | None
    places: tuple[tuple[str, str], ...] = ()

    def error(self, error: InvalidRequestError) -> InvalidRequestError:
        """An error of the constraint, by the request's paths."""
        return InvalidRequestError(*(replace(v, field=self._path(v.field)) for v in error.violations))

    def _path(self, field: str) -> str:
        for path, place in self.places:
            if field == path or field.startswith(f"{path}/"):
                rest = field[len(path) :]
                return place + (f"#{rest}" if rest and "#" not in place else rest)
            if field.startswith(f"{path}#"):
                return place  # the client has not written what the pointer leads to
        return field
