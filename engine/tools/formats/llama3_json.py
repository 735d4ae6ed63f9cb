"""Llama 3.1 and later: the message is the call.

https://www.llama.com/docs/model-cards-and-prompt-formats/llama3_1/
"""

from draftline.engine.chat.tool_format import ToolFormat

FORMAT = ToolFormat(
    name="llama3_json",
    recognised_by=('"parameters": ', "<|start_header_id|>", "respond with a JSON for a function call"),
    before_name='{"name": "',
    after_name='", "parameters": ',
    end="}",
    separator="; ",
)
