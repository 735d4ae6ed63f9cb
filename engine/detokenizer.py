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
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._stops = stops
        self._held = ""

    def push(self, token: bytes) -> tuple[str, str | None]:
        """Add one token.

        Returns:
            The text that can be shown now, and the stop string that it ran into, if any (then the text ends before it).
        """
        self._held += self._decode(token)
        if not self._stops:
            return self._release(len(self._held)), None
        found = [(at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            at, stop = min(found, key=lambda match: (match[0], -len(match[1])))
            text, self._held = self._held[:at], ""
            return text, stop
        return self._release(self._first_possible_stop()), None

    def push_unchecked(self, token: bytes) -> str:
        """Add one token whose text cannot be part of a stop string (min_tokens has not been reached)."""
        self._held += self._decode(token)
        return self._release(len(self._held))

    def flush(self) -> str:
        """What is left at the end: held text, and the replacement character for an unfinished character."""
        self._held += self._decode(b"", final=True)
        return self._release(len(self._held))

    def _release(self, length: int) -> str:
        text, self._held = self._held[:length], self._held[length:]
        return text

    def _first_possible_stop(self) -> int:
        """Where the earliest suffix of the held text begins that a stop string may still complete."""
        for at in range(len(self._held)):
            suffix = self._held[at:]
            if any(stop.startswith(suffix) for stop in self._stops):
                return at
        return len(self._held)
