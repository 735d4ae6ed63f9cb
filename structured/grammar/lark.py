"""Lark grammars for llguidance: made from regular expressions, and checked."""

from __future__ import annotations

import json

from llguidance import LLMatcher


def regex_grammar(regex: str) -> str:
    """A regular expression as a Lark grammar."""
    grammar: str = json.loads(LLMatcher.grammar_from_regex(regex))["grammars"][0]["lark_grammar"]
    return grammar


def regex_error(grammar: str) -> str | None:
    """The error of a malformed regular expression in a Lark grammar, in several lines; None if all are well-formed."""
    message = LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(grammar))
    return message.strip() if "regex parse error" in message else None
