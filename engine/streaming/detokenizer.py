"""Incremental detokenization: whole characters only, with possible stop strings held back.

Tokens are bytes. A character may be spread over several tokens, so it appears with its last byte. Text that could be
the beginning of a stop string is held until later tokens decide.
"""

from __future__ import annotations

import codecs


class Detokenizer:
    """Turns the token bytes of one output into text, and finds its stop strings.

    Attributes:
        undecoded: the bytes so far of a character that later tokens may complete.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        """``stops`` are the strings that end the output. None of them is empty."""
        self._stops = stops
        self._max_stop_len = max(map(len, stops), default=0)
        self._first_characters = frozenset(stop[0] for stop in stops)
        self.undecoded = b""
        self._held = ""

    def push(self, token: bytes) -> tuple[str, str | None]:
        """Add one token.

        Returns:
            The text that is certain now, and the stop string that ends the output, if any. The text ends before it.
        """
        # The common case: no character can begin a stop string. Held text begins with one, so none was held.
        text = self._held + self.push_unchecked(token)
        if self._first_characters.isdisjoint(text):
            return text, None

        # The stop string that begins first ends the output; of those that begin together, the longest.
        found = [(start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            start, stop = min(found, key=lambda match: (match[0], -len(match[1])))
            self._held = ""
            return text[:start], stop

        # A suffix that later tokens may complete to a stop string is held.
        start = self._first_possible_stop(text)
        self._held = text[start:]
        return text[:start], None

    def push_unchecked(self, token: bytes) -> str:
        """Add one token without looking for stop strings, and return its whole characters. No text may be held."""
        data = self.undecoded + token
        text, used = codecs.utf_8_decode(data, "replace")
        self.undecoded = data[used:]
        return text

    def flush(self) -> str:
        """Return the rest of the text: what was held, and the replacement character for an unfinished character."""
        text = self._held + self.undecoded.decode(errors="replace")
        self._held, self.undecoded = "", b""
        return text

    def _first_possible_stop(self, text: str) -> int:
        """Return the start of the longest suffix of ``text`` that begins a stop string; its length if there is none."""
        for start in range(max(0, len(text) - self._max_stop_len + 1), len(text)):
            if text[start] in self._first_characters and any(stop.startswith(text[start:]) for stop in self._stops):
                return start
        return len(text)
