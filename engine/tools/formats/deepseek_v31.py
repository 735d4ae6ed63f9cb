"""DeepSeek V3.1: calls between control tokens.

https://huggingface.co/deepseek-ai/DeepSeek-V3.1
"""

from draftline.engine.chat.tool_format import ToolFormat

FORMAT = ToolFormat(
    name="deepseek_v31",
    recognised_by=("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>"),  # noqa: RUF001
    open="<｜tool▁calls▁begin｜>",  # noqa: RUF001
    before_name="<｜tool▁call▁begin｜>",  # noqa: RUF001
    after_name="<｜tool▁sep｜>",  # noqa: RUF001
    end="<｜tool▁call▁end｜>",  # noqa: RUF001
    separator="",
    close="<｜tool▁calls▁end｜>",  # noqa: RUF001
    trigger="<｜tool▁calls▁begin｜>",  # noqa: RUF001
)
