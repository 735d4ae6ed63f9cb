"""``TextOffsets``: where tokens begin in the text that they make, in characters.

A character may have several tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftline.engine.streaming.detokenizer import Detokenizer


class TextOffsets:
    """The offsets of the tokens of one text, as they come."""

    def __init__(self, start: int = 0) -> None:
        """The text begins at ``start``."""
        self._characters = start  # whole ones so far
        self._detokenizer = Detokenizer(())

    def push(self, data: bytes) -> int:
        """Add a token by the bytes that the text has of it; none for a special token.

        Returns:
            The offset of the character that the token begins or goes on with. Bytes that are no UTF-8 are U+FFFD in the
            text.
        """
        # A first byte that does not go on with the character begins the one behind it.
        behind = len((self._detokenizer.undecoded + data[:1]).decode(errors="replace")) - 1
        offset = self._characters + max(behind, 0)
        self._characters += len(self._detokenizer.push_unchecked(data))
        return offset


def echo_offsets(echo: str, tokens: Sequence[bytes], special: Sequence[bool]) -> list[int]:
    """The offsets of a prompt's tokens in its text.

    Args:
        echo: the text, as it was sent. A tokenizer may have put special tokens and a space before it.
        tokens: the bytes of the tokens; special ones have those of their names.
        special: which of them are special.
    """
    offsets, text = TextOffsets(), b"".join(tokens).decode(errors="replace")
    found = [offsets.push(token) for token in tokens]
    start = 0
    for offset, is_special in zip(found, special, strict=True):
        if text.startswith(echo, offset):
            start = offset
            break
        if text.startswith(f" {echo}", offset):
            start = offset + 1
            break
        if not is_special:
            break
    return [min(max(offset - start, 0), len(echo)) for offset in found]
