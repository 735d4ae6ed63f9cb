"""Grammars in EBNF, as XGrammar and llama.cpp write them ("root ::= …"), as Lark grammars.

llguidance translates them. It reads a rule on one line only, and writes the escapes of few characters right, so both are
resolved before.
"""

from __future__ import annotations

import re
from typing import Final

_PART: Final = re.compile(
    r"""(?P<text>"(?:[^"\\\n]|\\.)*")
    |(?P<characters>\[(?:[^\]\\\n]|\\.)*\])
    |(?P<comment>\#[^\n]*)
    |(?P<line>\s*\n\s*)(?![\w-]+\s*::=|\Z)""",
    re.VERBOSE,
)
_ESCAPE: Final = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([^xuU]))")
_KEPT: Final = {"text": '"\\nrt', "characters": '"\\nrt[]'}
"""The escapes that llguidance writes right."""


_RULE: Final = re.compile(r"(?m)^\s*[\w-]+\s*::=")


def is_ebnf(source: str) -> bool:
    """Whether a grammar is in EBNF, and not in Lark, where a colon ends the name of a rule."""
    return _RULE.search(source) is not None


def ebnf_grammar(source: str) -> str:
    """A grammar in EBNF as a Lark grammar.

    Raises:
        ValueError: it cannot be read.
    """
    from llguidance.gbnf_to_lark import gbnf_to_lark  # not by workers that read JSON schemas: see `lark`

    try:
        return gbnf_to_lark(_PART.sub(_on_one_line, re.sub(r"\r\n?", "\n", source)))
    except Exception as error:  # noqa: BLE001 - whatever the translator trips over
        # The number of a line is that of a rule, since each is on one line: what it quotes says where.
        raise ValueError("the EBNF cannot be read: " + re.sub(r"\bat line \d+, ", "at ", str(error))) from None


def _on_one_line(part: re.Match[str]) -> str:
    kind = part.lastgroup
    if kind == "comment":
        return ""
    if kind not in _KEPT:
        return " "  # the rule goes on in the next line

    def resolved(escape: re.Match[str]) -> str:
        code = escape[1] or escape[2] or escape[3]
        character = chr(int(code, 16)) if code else escape[4]
        if "\ud800" <= character <= "\udfff":
            raise ValueError(f"{escape[0]} is no character, but half of one: write \\U and eight digits")
        if not code:
            return escape[0] if character in _KEPT[kind] else character
        if character in '"\\' or (kind == "characters" and character in "[]"):
            return "\\" + character
        # A hyphen or a caret as such would be a sign in a class.
        return f"\\x{ord(character):02x}" if character < " " or character in "-^\x7f" else character

    return _ESCAPE.sub(resolved, part[0])
