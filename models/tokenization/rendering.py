"""``Rendering``: how a chat template renders one conversation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


class RoleError(ValueError):
    """A chat template does not know a message's role.

    Attributes:
        index: the message's index.
    """

    def __init__(self, index: int, problem: str) -> None:
        super().__init__(problem)
        self.index = index


class VariableError(ValueError):
    """A chat template's variable cannot be set."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """The choices of one conversation. The names are those of HF's ``apply_chat_template``.

    Attributes:
        variables: the template's own variables, such as ``enable_thinking``; JSON values, with finite numbers.
        add_generation_prompt: end where the assistant's next message begins.
        continue_final_message: end in the midst of the last message, which the model then continues.
        tools: the tools that the template shows, in OpenAI's form; JSON values.
        members: what messages have besides role and content, by their index: ``tool_calls``, ``tool_call_id``, …; JSON
            values.
    """

    variables: Mapping[str, object] = field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: tuple[Mapping[str, object], ...] = ()
    members: Mapping[int, Mapping[str, object]] = field(default_factory=dict)


AS_USUAL = Rendering()
"""A new message of the assistant begins, and the template's variables have their defaults."""
