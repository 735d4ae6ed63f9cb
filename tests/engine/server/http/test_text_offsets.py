"""Offsets of tokens in their text, against the text before each token; and those of a prompt as it was sent."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from byte_tokenizer import write_byte_tokenizer

from draftline.engine.outputs import Delta, PositionLogprobs, TokenLogprob
from draftline.engine.server.http.endpoints.completions import CompletionAnswer, CompletionBody
from draftline.engine.server.http.text_offsets import TextOffsets, echo_offsets
from draftline.engine.streaming.detokenizer import Detokenizer
from draftline.models.tokenization.tokenizer import Tokenizer

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


TAG = {"type": "tag", "begin": "<|user|>", "content": {"type": "any_text"}, "end": "!"}


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        (None, [0, 0, 1]),
        ({"structural_tag": {"type": "structural_tag", "format": TAG}}, [0, 8, 9]),
    ],
    ids=["no text", "a mark"],
)
def test_special_tokens_count_where_they_are_marks(outputs: object, expected: list[int], tmp_path: Path) -> None:
    """The engine writes the name of a special token that is a mark of a structural tag into the text."""
    write_byte_tokenizer(tmp_path)
    engine: Any = SimpleNamespace(
        tokenizer=Tokenizer.from_folder(tmp_path), info=SimpleNamespace(system_fingerprint="fp")
    )
    generation: Any = SimpleNamespace(wanted=())
    body = CompletionBody.model_validate({"prompt": "a", "logprobs": 0, "structured_outputs": outputs})
    tokens = (engine.tokenizer.special_names["<|user|>"], *engine.tokenizer.encode("ab"))
    listed = tuple(PositionLogprobs(TokenLogprob(token, 0.0, 1), ()) for token in tokens)
    [event] = CompletionAnswer(body, generation, engine, "m").update(0, Delta(0, tokens, "<|user|>ab", listed))
    logprobs = json.loads(event.removeprefix(b"data: "))["choices"][0]["logprobs"]
    assert logprobs["text_offset"] == expected
