"""``ByteVocabulary``: the tokens of a model as bytes, which is how constraints see them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # worker processes, which start often, read no model
    from draftline.models.tokenization.tokenizer import Tokenizer


def no_encoding(text: str) -> list[int]:
    """Stands for a tokenizer where no text is tokenized: its bytes."""
    return list(text.encode())


@dataclass(frozen=True, slots=True, eq=False)
class ByteVocabulary:
    """The text of each token of a model.

    Attributes:
        tokens: each token's bytes, by id. Tokens without text are empty; no constraint ever allows them.
        eos_ids: the tokens that end an output. Their bytes are empty.
        special_ids: control tokens. Their bytes are empty too.
        encode: the model's tokenizer: from a text to ids, without special tokens.
        special_names: the control tokens by name, without those that end an output. They may be marks of tags.
    """

    tokens: tuple[bytes, ...]
    eos_ids: frozenset[int]
    special_ids: frozenset[int]
    encode: Callable[[str], list[int]] = field(repr=False)
    special_names: Mapping[str, int] = field(default_factory=dict, repr=False)

    @property
    def mask_words(self) -> int:
        """The number of int32 words of a mask over all tokens."""
        return -(-len(self.tokens) // 32)

    @staticmethod
    def of(tokenizer: Tokenizer, size: int, eos_ids: frozenset[int]) -> ByteVocabulary:
        """The vocabulary of a model.

        Args:
            tokenizer: the model's tokenizer.
            size: the width of the logits, which may exceed the number of ids of the tokenizer.
            eos_ids: the ids that end an output.
        """
        silent = tokenizer.special_ids | eos_ids
        tokens = tuple(b"" if index in silent else tokenizer.token_bytes(index) for index in range(size))
        names = {
            name: index for name, index in tokenizer.special_names.items() if index < size and index not in eos_ids
        }
        return ByteVocabulary(tokens, eos_ids, silent, tokenizer.encode_text, names)
