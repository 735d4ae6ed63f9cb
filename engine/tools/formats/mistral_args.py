"""Mistral, tokenizers v11 and later: a control token before each name, and one before its arguments."""

from draftline.engine.chat.tool_format import ToolFormat

FORMAT = ToolFormat(
    name="mistral_args",
    recognised_by=("[TOOL_CALLS]", "[ARGS]"),
    before_name="[TOOL_CALLS]",
    after_name="[ARGS]",
    end="",
    separator="",
    trigger="[TOOL_CALLS]",
)
