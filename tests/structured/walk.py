"""Walks a text through llguidance byte by byte: every byte is a token, so that no tokenizer has a say."""

from __future__ import annotations

import functools

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper


class _Bytes:
    eos_token_id = 256
    bos_token_id = None
    tokens = (*(bytes([value]) for value in range(256)), b"<eos>")
    special_token_ids = (256,)

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@functools.cache
def _tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_Bytes()), n_vocab=257, slices=[])


class Walker:
    """Tells whether texts are in a language."""

    def __init__(self, compiled: str) -> None:
        self._matcher = LLMatcher(_tokenizer(), compiled, log_level=0)
        assert not self._matcher.is_error(), self._matcher.get_error()

    @classmethod
    def of_grammar(cls, grammar: str) -> Walker:
        """Of a Lark grammar."""
        return cls(LLMatcher.grammar_from_lark(grammar))

    @classmethod
    def of_regex(cls, regex: str) -> Walker:
        """Of a regular expression in Rust's dialect."""
        return cls(LLMatcher.grammar_from_regex(regex))

    def accepts(self, text: str) -> bool:
        """Whether the whole text is in the language."""
        self._matcher.reset()
        tokens = list(text.encode())
        consumed = self._matcher.try_consume_tokens(tokens)
        assert not self._matcher.is_error(), self._matcher.get_error()
        return consumed == len(tokens) and self._matcher.is_accepting()
