"""Walks a text through llguidance byte by byte: every byte is a token, so no tokenizer plays a role."""

from __future__ import annotations

import functools
import random

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from draftline.structured.language import Language
from draftline.structured.unique.cursor import strings_differ
from draftline.structured.unique.paths import UniquePaths


class _Bytes:
    eos_token_id = 256
    bos_token_id = None
    tokens = (*(bytes([value]) for value in range(256)), b"<eos>")
    special_token_ids = (256,)

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


_ENDING = {256, *b'"}]'}


@functools.cache
def _tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_Bytes()), n_vocab=257, slices=[])


class Walker:
    """Decides whether texts are in a language."""

    def __init__(self, compiled: str) -> None:
        self._matcher = LLMatcher(_tokenizer(), compiled, log_level=0)
        assert not self._matcher.is_error(), self._matcher.get_error()
        self._unique: UniquePaths | None = None

    @classmethod
    def of_grammar(cls, grammar: str) -> Walker:
        """The walker of a Lark grammar."""
        return cls(LLMatcher.grammar_from_lark(grammar))

    @classmethod
    def of_regex(cls, regex: str) -> Walker:
        """The walker of a regular expression in Rust's dialect."""
        return cls(LLMatcher.grammar_from_regex(regex))

    @classmethod
    def of_language(cls, language: Language) -> Walker:
        """The walker of the grammar of a language, which also compares strings that have to differ."""
        walker = cls.of_grammar(language.grammar)
        walker._unique = language.unique
        return walker

    def accepts(self, text: str) -> bool:
        """Whether the whole text is in the language."""
        if self._unique is not None and not strings_differ(text.encode(), self._unique):
            return False
        self._matcher.reset()
        tokens = list(text.encode())
        consumed = self._matcher.try_consume_tokens(tokens)
        assert not self._matcher.is_error(), self._matcher.get_error()
        return consumed == len(tokens) and self._matcher.is_accepting()

    def write(self, source: random.Random, limit: int = 400) -> str | None:
        """A random text of the language; None if it does not end in time.

        After a while closing brackets and quotes are preferred, so that most texts end.
        """
        self._matcher.reset()
        written = bytearray()
        while len(written) < limit:
            mask = self._matcher.compute_bitmask()
            assert not self._matcher.is_error(), self._matcher.get_error()
            allowed = [token for token in range(257) if mask[token // 8] >> (token % 8) & 1]
            assert allowed, f"stuck after {bytes(written)!r}"
            ending = [token for token in allowed if token in _ENDING]
            likely = ending if ending and (len(written) > 60 or source.random() < 0.2) else allowed
            token = source.choice(likely)
            if token == 256:
                break
            assert self._matcher.consume_token(token)
            written.append(token)
        else:
            return None
        return written.decode()
