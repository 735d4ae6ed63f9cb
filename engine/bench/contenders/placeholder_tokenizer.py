"""A tokenizer for shapes, which have none. Every id has a text, so detokenization takes as long as with a real one."""

from __future__ import annotations

import itertools
import string
from pathlib import Path

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE


def write_placeholder_tokenizer(folder: Path, vocab_size: int) -> None:
    """Write a tokenizer.json: first all bytes, as ByteLevel spells them, then words that no text is encoded to."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    space = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(" ")[0][0]
    words = (
        space + "".join(letters)
        for length in itertools.count(2)
        for letters in itertools.product(string.ascii_lowercase, repeat=length)
    )
    tokens = itertools.islice(itertools.chain(alphabet, words), vocab_size)
    tokenizer = Tokenizer(BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
