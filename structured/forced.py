"""Forced text as drafts: where only one text can follow, what the model would most likely write it with.

"Only one token is allowed" is rare even there, since many tokenizations spell the same text. So the forced text's
canonical tokenization is drafted, and the model says whether it agrees. The last token is left out: what it would be
depends on the text behind it, which is not forced.
"""

from __future__ import annotations

from draftline.structured.matcher import Matcher
from draftline.structured.vocabulary import ByteVocabulary


def forced_tokens(matcher: Matcher, vocabulary: ByteVocabulary, most: int) -> tuple[int, ...]:
    """Up to ``most`` tokens that will very likely come next; none where nothing is forced.

    The matcher is left as it was. All tokens are legal, one after the other.
    """
    tokens = _canonical(matcher.forced(), vocabulary)
    taken: list[int] = []
    for token in tokens:
        if len(taken) == most or not matcher.advance(token):
            break
        taken.append(token)
    if len(taken) == len(tokens):
        if not matcher.ended:
            drafts = taken[:-1]
        elif taken and len(taken) < most:
            drafts = [*taken, min(vocabulary.eos_ids)]
        else:
            drafts = taken
    else:
        drafts = taken
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
