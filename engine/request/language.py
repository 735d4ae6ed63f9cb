"""What an engine needs for texts: its tokenizer and its compiler. The server of a remote engine has both, too."""

from __future__ import annotations

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


def configured_compiler(config: EngineConfig, tokenizer: Tokenizer, shape: ModelConfig) -> ConstraintCompiler:
    """The compiler of constraints for a model's tokens. It has started nothing yet."""
    vocabulary = ByteVocabulary.of(tokenizer, shape.vocab_size, frozenset(tokenizer.all_eos_ids(shape)))
    return ConstraintCompiler(vocabulary, cache_folder=cache_folder(config.constraint_cache))
