"""For models that were trained on no format: one JSON object with all calls. A system message explains it."""

from draftline.engine.chat.tool_format import ToolFormat

FORMAT = ToolFormat(
    name="json",
    recognised_by=(),
    open='{"tool_calls": [',
    before_name='{"name": "',
    after_name='", "arguments": ',
    end="}",
    separator=", ",
    close="]}",
    trigger='{"tool_calls": [',
)
