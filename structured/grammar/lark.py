"""Lark grammars for llguidance: made from regular expressions, and checked.

llguidance is imported where it is used: workers that read JSON schemas start faster without it.
"""

from __future__ import annotations

import json
import re


def regex_grammar(regex: str) -> str:
    """A regular expression as a Lark grammar."""
    from llguidance import LLMatcher

    grammar: str = json.loads(LLMatcher.grammar_from_regex(regex))["grammars"][0]["lark_grammar"]
    return grammar


NO_FORCING = '%llguidance {"no_forcing": true}'
"""Without this, forced text would be allowed in one tokenization only.

It comes last: the last directive counts, and error messages keep the line numbers of the grammar.
"""


_QUOTED = 30
"""Characters of a malformed expression that are quoted on either side of the error."""


def regex_error(grammar: str) -> str | None:
    """The error of a malformed regular expression in a Lark grammar, in one line; None if all are well-formed."""
    from llguidance import LLMatcher

    message = LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(grammar))
    # The expression (behind line numbers if it has several lines), carets below what is wrong, and the reason.
    found = re.search(
        r"(?s)regex parse error:.*?(?:^|\n)(?P<before> {4}|\d+: )(?P<line>[^\n]*)\n(?P<space> +)\^[ ^]*\n.*?error: (?P<reason>[^\n]*)",
        message,
    )
    if found is None:
        return None
    at = len(found["space"]) - len(found["before"])
    first, last = max(at - _QUOTED, 0), at + _QUOTED
    line = found["line"]
    quoted = f"{'…' * (first > 0)}{line[first:last]}{'…' * (last < len(line))}"
    return f"is malformed: {found['reason']}, at {line[at : at + 1]!r} in {quoted}"


def grammar_error(message: str) -> str:
    """An error of llguidance's about a grammar, in the words of the grammar's author.

    Args:
        message: the error. It may quote `NO_FORCING`, or have a Rust backtrace.
    """
    if message.startswith("panic") and "grammar.symbols.len()" in message:
        return "the grammar is too large: it has more than 65,525 rules, terminals and groups"
    if message.startswith("panic"):
        return "the grammar cannot be read: a name in angle brackets is not a special token of the model, perhaps"
    if message.startswith("rollback not supported"):
        return "the attributes max_tokens and stop of a rule are not supported"
    if "when checking relevance of lexemes" in message:
        return "bounds on a string's length take too long to combine with its other conditions: give it lower bounds"
    message = message.replace("<non-verbose/>", "").replace(" (in regex)", "")
    message = re.sub(r"; following special tokens are available: .*", "", message)  # their names are ours
    lines = [line for line in message.splitlines() if NO_FORCING not in line]
    return re.sub(r"^(?:at )?(\d+)\((\d+)\): ", r"line \1, column \2: ", "\n".join(lines).strip())
