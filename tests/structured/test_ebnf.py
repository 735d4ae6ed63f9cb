"""Grammars in EBNF have the language that llama.cpp and XGrammar read in them, as Lark grammars."""

from __future__ import annotations

import pytest
from walk import Walker

from draftline.structured.constraint import ConstraintSpec, language
from draftline.structured.errors import InvalidConstraintError
from draftline.structured.grammar.ebnf import ebnf_grammar

CHESS = r"""# Specifies chess moves as a list in algebraic notation, using PGN conventions

# Force first move to "1. ", then any 1-2 digit number after
root    ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")+
move    ::= (pawn | nonpawn | castle) [+#]?

# piece type, optional file/rank, optional capture, dest file & rank
nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn    ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle  ::= "O-O" "-O"?
"""
LINES = """# a comment

root ::=
  "a" # of "a"
  "c"

  | # "z" |
  "b"
  | d
  # the end
d ::= "#" [#] |
  "::="
"""
ESCAPES = (
    r'root ::= "\x0b\x41\u0022\u005c\x5d\]\u00e9" [\x2d\u005e\x5d\x5b\x5c]+ [\x0b\u0041-\u0043] [^\u00e9\U0001F600]'
)


@pytest.mark.parametrize(
    ("source", "accepted", "rejected"),
    [
        (CHESS, ["1. e4 e5\n2. Nf3 Nc6\n"], ["1. e4\n", "1. e4 e5\n"]),
        (LINES, ["ac", "b", "##", "::="], ["a", "c", "z", "acb", "#"]),
        (LINES.replace("\n", "\r\n"), ["ac", "b", "##", "::="], ["a", "z", "acb"]),
        (
            ESCAPES,
            ['\x0bA"\\]]é-^][\\\x0bx', '\x0bA"\\]]é-Bx'],
            ['\x0bA"\\]]é-Bé', '\x0bA"\\]]é-B😀', '\x0bA"\\]]éaBx'],
        ),
        (r'root ::= "\u00e9" "\U0001F600" [\u00e0-\u00ff]', ["é😀ç"], ["é😀a", "e😀ç"]),
    ],
    ids=["chess", "lines", "lines of Windows", "escapes", "letters"],
)
def test_the_language_of_a_grammar(source: str, accepted: list[str], rejected: list[str]) -> None:
    walker = Walker.of_grammar(ebnf_grammar(source))
    assert [text for text in accepted if not walker.accepts(text)] == []
    assert [text for text in rejected if walker.accepts(text)] == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ('root ::= "a"\n  | <[1000]>', r"""cannot be read: Expected name at 'root ::= "a" \| ' \^ '<\[1000\]>'"""),
        (r'root ::= "\ud83d\ude00"', r"\\ud83d is no character, but half of one"),
        (r'root ::= "\U99999999"', "cannot be read"),
        ('root ::= "a', "cannot be read: Unexpected end of input"),
    ],
)
def test_what_cannot_be_read_is_refused(source: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ebnf_grammar(source)


def test_a_grammar_constraint_may_be_in_ebnf() -> None:
    sql = 'root ::= "SELECT " column " from " table\n\ncolumn ::= "col_1" | "col_2"\n\ntable ::= "table_1"\n'
    walker = Walker.of_grammar(language(ConstraintSpec("grammar", sql)).grammar)
    assert walker.accepts("SELECT col_2 from table_1")
    assert not walker.accepts("SELECT col_2")
    lark = 'start: name " ::= " name\nname: /[a-z]/\n'
    assert language(ConstraintSpec("grammar", lark)).grammar == lark
    with pytest.raises(InvalidConstraintError, match="the EBNF cannot be read: Expected name"):
        language(ConstraintSpec("grammar", 'root ::= "a" <think>'))
