"""Hermes and Qwen: each call in a tag of its own, between free text.

https://github.com/NousResearch/Hermes-Function-Calling,
https://qwen.readthedocs.io/en/latest/framework/function_call.html
"""

from draftline.engine.chat.tool_format import ToolFormat

FORMAT = ToolFormat(
    name="hermes",
    recognised_by=("<tool_call>", "</tool_call>", '"arguments"'),
    before_name='<tool_call>\n{"name": "',
    after_name='", "arguments": ',
    end="}\n</tool_call>",
    separator="\n",
    trigger="<tool_call>",
)
