"""Bounds on the parsers of one grammar."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from draftline.structured.grammar.lark import grammar_error

if TYPE_CHECKING:
    from llguidance import LLParserLimits


@dataclass(frozen=True, slots=True)
class GrammarLimits:
    """Bounds on the parsers of one grammar.

    The defaults are llguidance's, but a fifth of the memory, and more fuel and items in a row. The mask of a real schema takes
    up to 400,000 units of fuel.

    Attributes:
        seconds: processor time to compile the grammar, in a worker process that tries it.
        mask_seconds: processor time of one mask, in that trial.
        lexer_states: states of one lexer, of 1 to 2 kB each.
        step_fuel: the lexer's work for one mask, in llguidance's units (about 14,000 take 1 ms).
        step_items: Earley items of one mask.
        row_items: Earley items behind one lexeme: an object has two for each optional member that may come next.
    """

    seconds: float = 2.0
    mask_seconds: float = 0.1
    lexer_states: int = 50_000
    step_fuel: int = 500_000
    step_items: int = 50_000
    row_items: int = 8_000

    def parser_limits(self) -> LLParserLimits:
        """The limits in llguidance's form."""
        from llguidance import LLParserLimits  # not by workers that read JSON schemas: see `grammar.lark`

        return LLParserLimits(
            max_lexer_states=self.lexer_states,
            step_lexer_fuel=self.step_fuel,
            step_max_items=self.step_items,
            max_items_in_row=self.row_items,
            precompute_large_lexemes=False,
            verbose_errors=False,
        )

    def explain(self, error: str) -> str:
        """The limit that an error of llguidance's stands for."""
        if "too many states" in error:
            return f"it needs more than {self.lexer_states} lexer states"
        if "too many expressions" in error:
            return f"one mask needs more than {self.step_fuel} units of the lexer's work"
        if "Too many items" in error:
            return f"one mask needs more than {self.step_items} Earley items"
        if found := re.search(r"Current row has (\d+) items; max is (\d+)", error):
            return f"{found[1]} alternatives are open at one place; at most {found[2]} are allowed"
        if error.startswith("NoExtension"):
            return "no text matches it"
        return grammar_error(error).partition("\n")[0]
