"""Mistral, tokenizer v3 (Tekken): as ``mistral``, without the space behind the control token."""

from draftline.engine.chat.tool_format import ToolFormat

FORMAT = ToolFormat(
    name="mistral_tekken",
    recognised_by=("[TOOL_CALLS][",),
    open="[TOOL_CALLS][",
    before_name='{"name": "',
    after_name='", "arguments": ',
    end="}",
    separator=", ",
    close="]",
    trigger="[TOOL_CALLS]",
)
