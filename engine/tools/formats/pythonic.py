"""Llama 3.2 and 4: the message is a list of Python calls.

https://www.llama.com/docs/model-cards-and-prompt-formats/llama4/
"""

from draftline.engine.chat.tool_format import ToolFormat

FORMAT = ToolFormat(
    name="pythonic",
    recognised_by=("[func_name1(",),
    open="[",
    before_name="",
    after_name="(",
    end=")",
    separator=", ",
    close="]",
    arguments="python",
)
