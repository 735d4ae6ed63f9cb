"""Tools of ``draftline chat``: local commands, which run after the user agrees, and answers that call them."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import typer

from draftline.engine.chat.calls import NAME, Tool, ToolCall
from draftline.engine.outputs import Delta, Finished, Update

TIMEOUT_S = 60.0
MAX_OUTPUT = 20_000
"""Characters of a command's output that the model gets."""

_PARAMETERS = json.dumps(
    {
        "type": "object",
        "properties": {"argument": {"type": "string", "description": "the command's last argument"}},
        "additionalProperties": False,
    }
)


@dataclass(frozen=True, slots=True)
class LocalTool:
    """A command of this machine.

    Attributes:
        tool: what the model knows of it.
        command: the program and its first arguments.
    """

    tool: Tool
    command: tuple[str, ...]

    def run(self, call: ToolCall) -> str:
        """Run the command if the user agrees. Returns its output, or why there is none."""
        argument = json.loads(call.arguments).get("argument")
        command = [*self.command, *([] if argument is None else [argument])]
        shown = shlex.join(command)
        if not typer.confirm(f"run {shown}?", default=False, err=True):
            return "The user did not allow this call."
        try:
            # No shell: what the model writes stays one argument.
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False
            )
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            return f"It failed: {error}"
        output = (done.stdout + done.stderr)[:MAX_OUTPUT]
        return output if done.returncode == 0 else f"{output}\n(exit status {done.returncode})"


def read_tools(values: Iterable[str]) -> dict[str, LocalTool]:
    """The tools of ``--tool NAME=COMMAND``, by name.

    Raises:
        typer.BadParameter: one is malformed, or two have one name.
    """
    tools: dict[str, LocalTool] = {}
    for value in values:
        name, separator, command = value.partition("=")
        try:
            words = tuple(shlex.split(command))
        except ValueError as error:
            raise typer.BadParameter(f"{value}: {error}", param_hint="--tool") from None
        if not separator or not words or not NAME.fullmatch(name):
            problem = f"{value}: give NAME=COMMAND, with a name of letters, digits, '_' and '-'"
            raise typer.BadParameter(problem, param_hint="--tool")
        if name in tools:
            raise typer.BadParameter(f"{name} is there twice", param_hint="--tool")
        tools[name] = LocalTool(Tool(name, f"Runs the command {command}", _PARAMETERS), words)
    return tools


def print_answer(updates: Iterator[Update], summarize: Callable[[Finished], str]) -> dict[str, Any]:
    """Print one answer as it comes: reasoning dimmed, calls as blocks. Returns it as a message."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    reasoning = ""
    for update in updates:
        if isinstance(update, Delta):
            if update.reasoning:
                reasoning += update.reasoning
                typer.secho(update.reasoning, nl=False, dim=True, err=True)
            if update.text:
                if reasoning and not message["content"]:
                    typer.echo(err=True)
                message["content"] += update.text
                typer.echo(update.text, nl=False)
            sys.stdout.flush()
        elif isinstance(update, Finished):
            if message["content"] or not update.tool_calls:
                typer.echo()
            for call in update.tool_calls:
                typer.secho(f"┌ {call.name}\n└ {call.arguments}", bold=True, err=True)
            typer.echo(summarize(update), err=True)
            if update.tool_calls:
                message["tool_calls"] = list(update.tool_calls)
    if reasoning:
        message["reasoning"] = reasoning
    return message
