"""Text of a growing list of tokens: whole characters only, stop strings held back.

Tokens are bytes. A character may be spread over several tokens, so text appears when its last byte has come. Text that
may be the beginning of a stop string is held until it is clear that it is not.
"""

from __future__ import annotations

import codecs


class Detokenizer:
    """Turns one output's token bytes into text as they come, and finds its stop strings."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        """``stops`` are the texts that end the output; none of them is empty."""
        self._stops = stops
        self._longest_stop = max(map(len, stops), default=0)
        self._first_characters = frozenset(stop[0] for stop in stops)
        self._undecoded = b""
        self._held = ""

    def push(self, token: bytes) -> tuple[str, str | None]:
        """Add one token.

        Returns:
            The text that can be shown now, and the stop string that it ran into, if any (then the text ends before it).
        """
        text = self._held + self.push_unchecked(token)
        if self._first_characters.isdisjoint(text):
            return text, None  # the usual case, decided fast; nothing was held then
        found = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            at, stop = min(found, key=lambda match: (match[0], -len(match[1])))
            self._held = ""
            return text[:at], stop
        at = self._first_possible_stop(text)
        self._held = text[at:]
        return text[:at], None

    def push_unchecked(self, token: bytes) -> str:
        """Add one token whose text cannot be part of a stop string, nor can that before it; returns all its text."""
        data = self._undecoded + token
        text, used = codecs.utf_8_decode(data, "replace")
        self._undecoded = data[used:]
        return text

    def flush(self) -> str:
        """What is left at the end: held text, and the replacement character for an unfinished character."""
        text = self._held + self._undecoded.decode(errors="replace")
        self._held, self._undecoded = "", b""
        return text

    def _first_possible_stop(self, text: str) -> int:
        """Where the earliest suffix of ``text``, which has no stop string, begins that one may still complete."""
        for at in range(max(0, len(text) - self._longest_stop + 1), len(text)):
            if text[at] in self._first_characters and any(stop.startswith(text[at:]) for stop in self._stops):
                return at
        return len(text)
