"""``ExtractionPrompt``: the prompt around each text.

What all texts share comes first, so the prefix cache has it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftline.engine.chat.messages import Chat
from draftline.engine.protocol import Prompt


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """An answer that was no value, and the message that says why."""

    answer: str
    correction: str


@dataclass(frozen=True, slots=True)
class ExtractionPrompt:
    """Instructions and examples, which are the same for all texts of a call.

    Attributes:
        instructions: what to extract.
        examples: (text, answer) pairs.
        as_chat: whether the model has a chat template. Without one, the prompt is a text that the answer continues.
    """

    instructions: str
    examples: tuple[tuple[str, str], ...]
    as_chat: bool

    def of(self, text: str, failed: Sequence[FailedAttempt] = ()) -> Prompt:
        """Make the prompt of one text, after some answers that were no values."""
        questions = [*(example for example, _ in self.examples), text, *(one.correction for one in failed)]
        answers = [*(answer for _, answer in self.examples), *(one.answer for one in failed)]
        # Not a system message: some templates refuse it.
        questions[0] = f"{self.instructions}\n\n{questions[0]}"
        if not self.as_chat:
            pairs = zip(questions, [*answers, ""], strict=True)
            return "\n\n".join(f"{question}\n\nJSON: {answer}".rstrip() for question, answer in pairs)
        messages = [("user", questions[0])]
        for answer, question in zip(answers, questions[1:], strict=True):
            messages += [("assistant", answer), ("user", question)]
        return Chat(messages)
