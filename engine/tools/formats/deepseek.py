"""DeepSeek V3 and R1: calls between control tokens, arguments in a block of code.

https://huggingface.co/deepseek-ai/DeepSeek-V3/blob/main/tokenizer_config.json
"""

from draftline.engine.chat.tool_format import ToolFormat

FORMAT = ToolFormat(
    name="deepseek",
    recognised_by=("<｜tool▁calls▁begin｜>", "```json"),  # noqa: RUF001
    open="<｜tool▁calls▁begin｜>",  # noqa: RUF001
    before_name="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",  # noqa: RUF001
    after_name="\n```json\n",
    end="\n```<｜tool▁call▁end｜>",  # noqa: RUF001
    separator="\n",
    close="<｜tool▁calls▁end｜>",  # noqa: RUF001
    trigger="<｜tool▁calls▁begin｜>",  # noqa: RUF001
)
