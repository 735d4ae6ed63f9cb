"""``TokenizerData``: what a model's files say of its tokenizer, whichever files they are."""

from __future__ import annotations

from dataclasses import dataclass, field

from tokenizers import Tokenizer as Backend


@dataclass(frozen=True, slots=True)
class TokenizerData:
    """The parts that a `Tokenizer` is made of.

    Attributes:
        where: the file or folder, for error messages.
        backend: the tokenizers library's tokenizer.
        bos_id: the beginning-of-sequence id, or None.
        eos_ids: the ids that end a sequence.
        unused_ids: ids that fill up the vocabulary and stand for no text.
        chat_template: the Jinja source, or None.
        template_variables: what the template can use: ``bos_token``, ``eos_token``, ….
    """

    where: str
    backend: Backend
    bos_id: int | None
    eos_ids: frozenset[int]
    unused_ids: frozenset[int] = frozenset()
    chat_template: str | None = None
    template_variables: dict[str, str] = field(default_factory=dict)
