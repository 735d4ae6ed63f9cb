"""Mistral, tokenizers v1 to v3: a list behind a control token.

https://docs.mistral.ai/capabilities/function_calling
"""

from draftline.engine.chat.tool_format import ToolFormat

FORMAT = ToolFormat(
    name="mistral",
    recognised_by=("[TOOL_CALLS] [",),
    open="[TOOL_CALLS] [",
    before_name='{"name": "',
    after_name='", "arguments": ',
    end="}",
    separator=", ",
    close="]",
    trigger="[TOOL_CALLS]",
)
