"""The exact bytes that each token of a vocabulary stands for.

Text is the concatenation of its tokens' bytes, decoded as UTF-8 once all of a character's bytes are there. Two
conventions are known: byte-level BPE (a printable character for each byte, as GPT-2's tokenizer introduced it) and
SentencePiece's (``▁`` for a space, ``<0xNN>`` for a byte that no piece has, https://arxiv.org/abs/1808.06226).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tokenizers import Tokenizer as Backend

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """The bytes of a tokenizer's tokens.

    Attributes:
        table: each token's bytes by id; empty for ids that no token has.
        strips_space: whether a decoded text loses one leading space, which encoding had put there.
    """

    table: tuple[bytes, ...]
    strips_space: bool


def token_bytes(backend: Backend) -> TokenBytes:
    """The bytes of all tokens, special ones included (theirs are their names).

    Raises:
        ValueError: the tokenizer's decoder follows neither convention.
    """
    convention = _convention(backend)
    vocab = backend.get_vocab(with_added_tokens=True)
    table = [b""] * (max(vocab.values(), default=-1) + 1)
    for token, index in vocab.items():
        table[index] = convention.token(token)
    for index, added in backend.get_added_tokens_decoder().items():
        # A token that is matched in normalized text represents text that normalizes to it.
        matched = (
            backend.normalizer.normalize_str(added.content)
            if added.normalized and backend.normalizer
            else added.content
        )
        table[index] = convention.added_token(matched)
    return TokenBytes(tuple(table), convention.strips_space)


@dataclass(frozen=True, slots=True)
class _Convention:
    """A convention of names for bytes.

    Attributes:
        token: of the vocabulary's tokens.
        added_token: of those added to it, which are text and not a sequence of bytes.
        strips_space: see `TokenBytes`.
    """

    token: Callable[[str], bytes]
    added_token: Callable[[str], bytes]
    strips_space: bool


def _convention(backend: Backend) -> _Convention:
    if backend.decoder is None:
        raise ValueError("has no decoder")
    steps = list(_steps(json.loads(backend.decoder.__getstate__())))
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return _Convention(_byte_level, str.encode, False)
    if kinds == ["Metaspace"]:
        replacement = str(steps[0]["replacement"])

        def with_spaces(token: str) -> bytes:
            return token.replace(replacement, " ").encode()

        return _Convention(with_spaces, with_spaces, steps[0]["prepend_scheme"] != "never")
    if "ByteFallback" in kinds and all(step in _SENTENCEPIECE_STEPS for step in steps):
        return _Convention(_sentencepiece, _sentencepiece, _STRIP in steps)
    raise ValueError(f"its decoder ({', '.join(map(str, kinds))}) is not supported; byte-level and SentencePiece's are")


def _steps(state: dict[str, object]) -> Iterable[dict[str, object]]:
    nested = state["decoders"] if state["type"] == "Sequence" else None
    if isinstance(nested, list):
        for step in nested:
            yield from _steps(step)
    else:
        yield state


_STRIP: dict[str, object] = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
_SENTENCEPIECE_STEPS: tuple[dict[str, object], ...] = (
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
    _STRIP,
)


def _sentencepiece(token: str) -> bytes:
    byte = _BYTE_PIECE.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()


def _byte_level(token: str) -> bytes:
    """Undo GPT-2's mapping. A token with any other character is no sequence of bytes but text."""
    try:
        return token.translate(_BYTE_OF_CHARACTER).encode("latin-1")
    except UnicodeEncodeError:
        return token.encode()


def _byte_of_character() -> dict[int, int]:
    """Code points to bytes: printable Latin-1 stands for itself, the other bytes count up from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    unmapped = dict.fromkeys(others, 0xFFFF)  # not Latin-1, so that encoding fails where these occur
    return {**unmapped, **{byte: byte for byte in printable}, **{0x100 + i: byte for i, byte in enumerate(others)}}


_BYTE_OF_CHARACTER = _byte_of_character()
