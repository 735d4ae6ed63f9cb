"""``EmbeddedGrammars``: the grammars of JSON Schemas inside one Lark grammar, which share their terminals.

Tools have much in common: brackets, numbers, texts. With a terminal for each of these, the grammar of many tools is half as
long, and compiles in half the time.
"""

from __future__ import annotations

import re

_NAME = re.compile(r"\b[A-Za-z]\w*")


class EmbeddedGrammars:
    """Adds grammars to the lines of another one."""

    def __init__(self, lines: list[str]) -> None:
        """``lines`` are the rules and terminals of the grammar around them."""
        self._lines = lines
        self._terminals: dict[str, str] = {}
        self._starts: dict[str, str] = {}

    def start(self, grammar: str) -> str:
        """The symbol for the texts of a grammar that `json_schema.forms.lark` has written."""
        known = self._starts.get(grammar)
        if known is None:
            known = self._starts[grammar] = self._add(grammar)
        return known

    def _add(self, grammar: str) -> str:
        if "%" in grammar or "::" in grammar:
            return f"%lark {{\n{grammar}\n}}"  # conditions of its own
        rules, begin, terminals = grammar.partition("\nT0: ")
        names: dict[str, str] = {}
        for line in (begin.lstrip() + terminals).splitlines():
            name, _, body = line.partition(": ")
            shared = self._terminals.get(body)
            if shared is None:
                shared = self._terminals[body] = f"J{len(self._terminals)}"
                self._lines.append(f"{shared}: {body}")
            names[name] = shared
        prefix = f"j{len(self._starts)}_"
        self._lines.append(_NAME.sub(lambda found: names.get(found[0]) or prefix + found[0], rules))
        return f"{prefix}start"
