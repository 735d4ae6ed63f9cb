"""Forced text as drafts: where only one text can follow, the tokens that the model would most likely write it with.

The mask rarely allows a single token even there, since many tokenizations spell the same text. So the canonical
tokenization of the forced text is drafted, and the model accepts or rejects it. The last token is left out: it depends
on the text behind it, which is not forced.
"""

from __future__ import annotations

from draftline.structured.matcher import Matcher
from draftline.structured.vocabulary import ByteVocabulary


def forced_drafts(matcher: Matcher, vocabulary: ByteVocabulary, max_tokens: int) -> tuple[int, ...]:
    """Up to ``max_tokens`` drafts of the forced text; none where nothing is forced.

    The matcher is left as it was. All drafts are legal, one after the other.
    """
    tokens = _canonical(matcher.forced(), vocabulary)
    taken: list[int] = []
    for token in tokens:
        if len(taken) == max_tokens or not matcher.advance(token):
            break
        taken.append(token)
    drafts = taken
    if len(taken) == len(tokens):
        if not matcher.ended:
            drafts = taken[:-1]
        elif taken and len(taken) < max_tokens:
            drafts = [*taken, min(vocabulary.eos_ids)]
    matcher.rollback(len(taken))
    return tuple(drafts)


def _canonical(text: bytes, vocabulary: ByteVocabulary) -> list[int]:
    """The tokens of a text that may end within a character; none if they would not spell it."""
    try:
        whole = text.decode()
    except UnicodeDecodeError as error:
        if not error.start:
            return []
        whole = text[: error.start].decode()
    if not whole:
        return []
    tokens = vocabulary.encode(whole)
    spelt = b"".join([vocabulary.tokens[token] for token in tokens])
    return tokens if spelt == whole.encode() else []
