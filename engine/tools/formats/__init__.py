"""The known formats of tool calls, and which one a chat template uses."""

from __future__ import annotations

from draftline.engine.chat.tool_format import ToolFormat
from draftline.engine.tools.formats import (
    deepseek,
    deepseek_v31,
    hermes,
    json,
    llama3_json,
    mistral,
    mistral_args,
    mistral_tekken,
    pythonic,
)

FORMATS: dict[str, ToolFormat] = {
    one.name: one
    for one in (
        # The first that recognises a template is chosen, so the narrower ones come first.
        hermes.FORMAT,
        mistral_args.FORMAT,
        mistral.FORMAT,
        mistral_tekken.FORMAT,
        deepseek.FORMAT,
        deepseek_v31.FORMAT,
        pythonic.FORMAT,
        llama3_json.FORMAT,
        json.FORMAT,
    )
}
"""The formats by name. `ToolFormatName` in engine/config.py lists the names."""

REASONING_MARKS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))
"""The marks around the reasoning of known models."""


def find_format(asked: str, template: str | None, *, shows_tools: bool) -> str:
    """The name of a model's format; empty if it is not known.

    Args:
        asked: the name of a format, which is returned, or "auto" for the chat template's.
        template: the source of the chat template; None without one.
        shows_tools: whether the template shows tools. If it does not, the format is "json", which needs no template.
    """
    if asked != "auto":
        return asked
    if template is None:
        return ""
    if not shows_tools:
        return json.FORMAT.name
    known = (one for one in FORMATS.values() if one.recognised_by)
    return next((one.name for one in known if all(text in template for text in one.recognised_by)), "")


def find_reasoning(template: str | None) -> tuple[str, str] | None:
    """The marks of a model's reasoning, by its chat template; None if it does not reason."""
    return next((marks for marks in REASONING_MARKS if template is not None and marks[1] in template), None)
