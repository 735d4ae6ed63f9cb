"""Small vocabularies, for exhaustive tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from draftline.structured.matcher import Matcher
from draftline.structured.vocabulary import ByteVocabulary


def vocabulary(*texts: str | bytes, eos: int = 2, silent: int = 1) -> ByteVocabulary:
    """Tokens of these texts and of all single bytes, between ``silent`` tokens without text and ``eos`` end-of-sequence tokens."""
    tokens = [text if isinstance(text, bytes) else text.encode() for text in texts]
    tokens += [bytes([byte]) for byte in range(256)]
    count = len(tokens) + silent
    table = (*[b""] * silent, *tokens, *[b""] * eos)
    ends = frozenset(range(count, count + eos))

    def encode(text: str) -> list[int]:
        """Greedy tokenization: always the longest token that fits."""
        data, ids = text.encode(), []
        while data:
            best = max((token for token in tokens if data.startswith(token)), key=len)
            ids.append(table.index(best))
            data = data[len(best) :]
        return ids

    return ByteVocabulary(table, ends, ends | frozenset(range(silent)), encode)


def legal_tokens(matcher: Matcher, vocabulary: ByteVocabulary) -> set[int]:
    """The tokens that a matcher allows next."""
    words = np.empty(vocabulary.mask_words, np.int32)
    matcher.fill_mask(words)
    return allowed(words, len(vocabulary.tokens))


def allowed(words: np.ndarray, size: int) -> set[int]:
    """The tokens of a mask."""
    return set(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")[:size]).tolist())


def texts(alphabet: str, longest: int) -> Iterator[str]:
    """All texts of these characters up to a length."""
    level: Sequence[str] = [""]
    yield ""
    for _ in range(longest):
        level = [text + character for text in level for character in alphabet]
        yield from level
