"""``TokenizerData``: a tokenizer's data from a model's files, whatever their format."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from tokenizers import Tokenizer as Backend

NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""The special tokens that every model may have, by the names that tokenizer_config.json gives them."""


@dataclass(frozen=True, slots=True)
class TokenizerData:
    """The parts of a `Tokenizer`.

    Attributes:
        where: the file or folder, for error messages.
        backend: the tokenizers library's tokenizer.
        bos_id: the beginning-of-sequence id, or None.
        eos_ids: the ids that end a sequence.
        chat_template: the Jinja source, or None.
        template_variables: available to the template: ``bos_token``, ``eos_token``, ….
        unused_ids: ids that fill up the vocabulary and stand for no text.
    """

    where: str
    backend: Backend
    bos_id: int | None
    eos_ids: frozenset[int]
    chat_template: str | None
    template_variables: dict[str, str]
    unused_ids: frozenset[int] = frozenset()

    def files(self) -> dict[str, str]:
        """The files, by name, from which HF's tokenizers are loaded."""
        tokens = self.template_variables
        config: dict[str, object] = {"tokenizer_class": "PreTrainedTokenizerFast"}
        config |= {name: token for name, token in tokens.items() if name in NAMED_TOKENS}
        own = {name: token for name, token in tokens.items() if name not in NAMED_TOKENS}
        if own:
            config["extra_special_tokens"] = own
        if self.chat_template is not None:
            config["chat_template"] = self.chat_template
        return {"tokenizer.json": self.backend.to_str(), "tokenizer_config.json": json.dumps(config)}

    def within(self, vocab_size: int) -> TokenizerData:
        """The same without special tokens beyond the model's vocabulary: their names stay text.

        The smallest Gemma 3 sees no images, but has the tokenizer of those that do.
        """
        added = self.backend.get_added_tokens_decoder()
        unknown = {index for index, token in added.items() if index >= vocab_size and token.special}
        if not unknown:
            return self
        state = json.loads(self.backend.to_str())
        state["added_tokens"] = [token for token in state["added_tokens"] if token["id"] not in unknown]
        return replace(
            self,
            backend=Backend.from_str(json.dumps(state)),
            bos_id=None if self.bos_id in unknown else self.bos_id,
            eos_ids=self.eos_ids - unknown,
        )
