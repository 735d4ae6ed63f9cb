"""``ByteVocabulary``: what a model's tokens are to a constraint, as bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from draftline.models.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, eq=False)
class ByteVocabulary:
    """Tokens as the text that they stand for.

    Attributes:
        tokens: each token's bytes, by id; empty for those that stand for no text, which no constraint ever allows.
        eos_ids: the tokens that end an output. Theirs are empty.
        special_ids: control tokens; theirs are empty too.
        encode: the ids that the model's tokenizer gives a text, without special tokens.
    """

    tokens: tuple[bytes, ...]
    eos_ids: frozenset[int]
    special_ids: frozenset[int]
    encode: Callable[[str], list[int]] = field(repr=False)

    @property
    def mask_words(self) -> int:
        """The int32 words of a mask over all tokens."""
        return -(-len(self.tokens) // 32)

    @staticmethod
    def of(tokenizer: Tokenizer, size: int, eos_ids: frozenset[int]) -> ByteVocabulary:
        """The vocabulary of a model.

        Args:
            tokenizer: the model's.
            size: the width of its logits, which may be more than the tokenizer has ids.
            eos_ids: the ids that end an output.
        """
        silent = tokenizer.special_ids | eos_ids
        tokens = tuple(b"" if index in silent else tokenizer.token_bytes(index) for index in range(size))
        return ByteVocabulary(tokens, eos_ids, silent, tokenizer.encode_text)
