"""``History``: a conversation's prompt so far, as token ids, as a text, or as chat messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

from typing_extensions import override

from draftline.engine.bench.load.workloads import Turn
from draftline.engine.chat.messages import Chat
from draftline.engine.protocol import Prompt

Form = Literal["tokens", "text", "chat"]

WORDS: Sequence[str] = [
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state",
    "family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week", "company",
    "system", "program", "question", "work", "government", "number", "night", "point", "home", "water", "room",
    "mother", "area", "money", "story", "fact", "month", "lot", "right", "study", "book", "eye", "job", "word",
    "business", "issue", "side", "kind", "head", "house", "service", "friend", "father", "power", "hour", "game",
    "line", "end", "member", "law", "car", "city", "community", "name", "president", "team", "minute", "idea",
    "body", "information", "back", "parent", "face", "others", "level", "office", "door", "health", "person", "art",
    "war", "history", "party", "result", "change", "morning", "reason", "research", "girl", "guy", "moment", "air",
    "teacher", "force", "education",
]  # fmt: skip
"""Common words, which most vocabularies have as single tokens with the space before them."""


def words(numbers: Sequence[int]) -> str:
    """A text of about as many tokens as there are numbers, each of which stands for a word."""
    return " ".join(WORDS[number % len(WORDS)] for number in numbers)


class History(Protocol):
    """The prompt of a conversation's next turn."""

    def add(self, turn: Turn) -> None:
        """Append what the turn adds."""
        ...

    def prompt(self) -> Prompt:
        """The prompt of the turn."""
        ...

    def answer(self, token_ids: Sequence[int], text: str) -> None:
        """Append the answer to it."""
        ...


class TokenHistory(History):
    """Token ids."""

    def __init__(self, shared: Sequence[int]) -> None:
        """Begin with ``shared``."""
        self._ids = list(shared)

    @override
    def add(self, turn: Turn) -> None:
        self._ids += turn.new

    @override
    def prompt(self) -> Prompt:
        return tuple(self._ids)

    @override
    def answer(self, token_ids: Sequence[int], text: str) -> None:
        self._ids += token_ids


class TextHistory(History):
    """One growing text."""

    def __init__(self, shared: Sequence[int]) -> None:
        """Begin with ``shared`` as words."""
        self._text = words(shared)

    @override
    def add(self, turn: Turn) -> None:
        space = " " if self._text and not self._text.endswith(("\n", " ")) else ""
        self._text += space + (turn.text or words(turn.new))

    @override
    def prompt(self) -> Prompt:
        return self._text

    @override
    def answer(self, token_ids: Sequence[int], text: str) -> None:
        self._text += text


class ChatHistory(History):
    """Chat messages: what is shared is the system's."""

    def __init__(self, shared: Sequence[int]) -> None:
        """Begin with ``shared`` as a system message, unless it is empty."""
        self._messages = [("system", words(shared))] if shared else []

    @override
    def add(self, turn: Turn) -> None:
        self._messages.append(("user", turn.text or words(turn.new)))

    @override
    def prompt(self) -> Prompt:
        return Chat(self._messages)

    @override
    def answer(self, token_ids: Sequence[int], text: str) -> None:
        self._messages.append(("assistant", text))


HISTORIES: Mapping[Form, Callable[[Sequence[int]], History]] = {
    "tokens": TokenHistory,
    "text": TextHistory,
    "chat": ChatHistory,
}
