"""``Language``: what an engine knows of texts. The server of an engine in another process knows the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from draftline.engine.config import EngineConfig
from draftline.models.config import ModelConfig
from draftline.models.tokenization.tokenizer import Tokenizer, load_tokenizer
from draftline.structured.compiler import ConstraintCompiler
from draftline.structured.table_cache import cache_folder
from draftline.structured.vocabulary import ByteVocabulary


def configured_tokenizer(config: EngineConfig, shape: ModelConfig) -> Tokenizer:
    """The tokenizer that an engine's options name, for the ids of a model; see `load_tokenizer`."""
    template = None if config.chat_template is None else Path(config.chat_template)
    return load_tokenizer(config.tokenizer or config.model, shape, template)


@dataclass(frozen=True, slots=True)
class Language:
    """The parts of an engine that know texts.

    Attributes:
        tokenizer: the model's.
        eos_ids: the model's end-of-sequence ids.
        compiler: compiles constraints for the tokenizer's tokens.
    """

    tokenizer: Tokenizer
    eos_ids: tuple[int, ...]
    compiler: ConstraintCompiler

    @staticmethod
    def of(config: EngineConfig, tokenizer: Tokenizer, shape: ModelConfig) -> Language:
        """Those of a model with this tokenizer. The compiler has started nothing yet."""
        eos_ids = tokenizer.all_eos_ids(shape)
        vocabulary = ByteVocabulary.of(tokenizer, shape.vocab_size, frozenset(eos_ids))
        return Language(
            tokenizer, eos_ids, ConstraintCompiler(vocabulary, cache_folder=cache_folder(config.constraint_cache))
        )
