"""Offsets of tokens in their text, against the text before each token; and those of a prompt as it was sent."""

from __future__ import annotations

import random

import pytest

from draftline.engine.server.http.text_offsets import TextOffsets, echo_offsets
from draftline.engine.streaming.detokenizer import Detokenizer

BYTES = "aé€😀".encode() + b"\x80\xbf\xc0\xe0\xe2\xed\xf0\xf4\xff"


@pytest.mark.parametrize("seed", range(200))
def test_a_token_begins_with_the_character_of_its_first_byte(seed: int) -> None:
    source = random.Random(seed)
    tokens = [bytes(source.choices(BYTES, k=source.randrange(4))) for _ in range(12)]
    detokenizer, offsets, text = Detokenizer(()), TextOffsets(5), ""
    joined = b"".join(tokens)
    found = [offsets.push(token) for token in tokens]
    for token in tokens:
        text += detokenizer.push_unchecked(token)
    text += detokenizer.flush()
    assert text == joined.decode(errors="replace")
    position = 0
    for token, offset in zip(tokens, found, strict=True):
        if token:  # the character of a byte is the last one of the text that ends with it
            assert offset == 5 + len(joined[: position + 1].decode(errors="replace")) - 1
        position += len(token)
    assert found == sorted(found)


@pytest.mark.parametrize(
    ("echo", "tokens", "special", "expected"),
    [
        ("abc", [b"ab", b"c"], (), [0, 2]),
        ("ab", [b"<s>", b" a", b"b"], (0,), [0, 0, 1]),  # SentencePiece: a first token, and a space before the text
        ("s>", [b"<s>", b"s", b">"], (0,), [0, 0, 1]),
        ("<s>ab", [b"<s>", b"ab"], (0,), [0, 3]),  # a name in the text
        ("<s>ab", [b"<s>", b"<s>", b"ab"], (0, 1), [0, 0, 3]),
        ("ab", [b"ab", b"</s>"], (1,), [0, 2]),
        ("\u00e9", [b"\xc3", b"\xa9"], (), [0, 0]),
        ("e\u0301a", ["\u00e9".encode(), b"a"], (), [0, 1]),  # normalized: within the text
        ("", [b"<s>"], (0,), [0]),
    ],
)
def test_a_prompts_tokens_begin_in_it_as_it_was_sent(
    echo: str, tokens: list[bytes], special: tuple[int, ...], expected: list[int]
) -> None:
    assert echo_offsets(echo, tokens, [index in special for index in range(len(tokens))]) == expected
