"""Where a JSON document ends that is known to be well-formed: its brackets and quotes are counted, nothing else is checked."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

_SPACE = b" \t\n\r"
_CLOSING = {ord("{"): "}", ord("["): "]"}
_NUMBER = b"0123456789+-.eE"

_MAX_KEPT_DEPTH = 256
"""Open brackets of a position that is kept. A model may nest as deep as its context is long."""


class JsonScan(NamedTuple):
    """The position in a document.

    Attributes:
        mode: "start", "string", "escape", "scalar" (a number, true, false or null), "inside" a bracket, or "over".
        open: the closing brackets that are due, the innermost last.
    """

    mode: str = "start"
    open: str = ""

    @property
    def complete(self) -> bool:
        """Whether the document can end here. A scalar can end anywhere: what follows it tells."""
        return self.mode == "over" or (self.mode == "scalar" and not self.open)

    @property
    def lasts(self) -> bool:
        """Whether readings may keep it."""
        return len(self.open) <= _MAX_KEPT_DEPTH

    def step(self, byte: int) -> JsonScan | None:
        """The position after a byte; None behind the document's end."""
        mode, due = self
        if mode == "escape":
            return JsonScan("string", due)
        if mode == "string":
            if byte == ord('"'):
                return JsonScan("inside" if due else "over", due)
            return JsonScan("escape", due) if byte == ord("\\") else self
        if mode == "over":
            return None
        if mode == "scalar" and not due:
            return self if byte in _NUMBER or chr(byte).isalpha() else None
        if byte == ord('"'):
            return JsonScan("string", due)
        if byte in _CLOSING:
            return JsonScan("inside", due + _CLOSING[byte])
        if due and byte == ord(due[-1]):
            return JsonScan("inside" if due[:-1] else "over", due[:-1])
        if due or byte in _SPACE:
            return self
        return JsonScan("scalar", due)

    def read(self, text: str) -> tuple[JsonScan, int]:
        """The position after more of the document, and how many characters of the text are the document's."""
        return _known(self, text) if self.lasts else _read(self, text)


def _read(scan: JsonScan, text: str) -> tuple[JsonScan, int]:
    for index, character in enumerate(text):
        for byte in character.encode():
            after = scan.step(byte)
            if after is None:
                return scan, index
            scan = after
        if scan.complete:
            return scan, index + 1
    return scan, len(text)


_known = lru_cache(maxsize=1 << 15)(_read)
"""Texts are tokens, so the same ones come again and again."""
