"""Grammars in EBNF have the language that their rules derive character by character."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping

import pytest
from walk import Walker

from draftline.structured.constraint import MAX_GRAMMAR_BYTES, ConstraintSpec, language
from draftline.structured.errors import InvalidConstraintError
from draftline.structured.grammar.ebnf import (
    MAX_NESTING,
    ROOT,
    Alternation,
    Character,
    Concatenation,
    Expression,
    Rule,
    Times,
    is_ebnf,
)
from draftline.structured.language import Language

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
ARITHMETIC = r"""root ::= (expr "=" ws term "\n")+
expr ::= term ([-+*/] term)*
term ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num ::= [0-9]+ ws
ws ::= [ \t\n]*
"""
LIST = 'root ::= list\nlist ::= "[" ("x" ("," list | ",x")*)? "]"\nx ::= "unused"'
STRINGS = r"""root ::= "{" root? "}" | ["] string ["] spaces
string ::= "" | [^"\\\r\n] string | "\\" ["\\/bfnrt] string
spaces ::= ([ \t\n] spaces)?
"""
START = 'root ::= "a" start\nstart ::= "b" | "(" Start ")"\nStart ::= start | "c"'


def grammar(source: str) -> Language:
    return language(ConstraintSpec("grammar", source))


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
        (LINES.replace("\n", "\r"), ["ac", "b", "##", "::="], ["a", "z", "acb"]),
        (r'root ::= [^\0-\x1f"\\] "\b\e"', ["a\b\x1b"], ["\0\b\x1b", "\x1f\b\x1b", '"\b\x1b', "abe"]),
        (r'root ::= "\u00e9" "\U0001F600" [\u00e0-\u00ff]', ["é😀ç"], ["é😀a", "e😀ç"]),
        ("root ::= [-a] [a-] [+--] [^^] [\\^a] . ", ["-a,b^\n", "a--a^😀"], ["b--a^x", "-a,^^x", "-a.b^x"]),
        # A terminal with the white space would take the newline, and the text would not end.
        (ARITHMETIC, ["1+(a\n*2)=3\n", "1=2 \n\n", "a=1\nb=2\n"], ["1=2", "1=(2\n)", "a=\n"]),
        (LIST, ["[]", "[x]", "[x,x,x]", "[x,[],x,[x,[x]]]"], ["[,x]", "[x,]", "[x,[x]", ""]),
        (STRINGS, ['""', '{{"a\\n\\"b" \n\t}}', "{}"], ['"', '"a', '"\\x"', '"a"b', "{ }"]),
        (START, ["ab", "a(b)", "a((c))"], ["ac", "a((b)"]),
        ('root ::= "a"{2} "b"{1,} "c"{0,2} | ("d" root){2,3}', ["aab", "aabbcc", "daabdaabc"], ["ab", "aa", "daab"]),
        ('root ::= | "a" | ("b" | ) "c"', ["", "a", "bc", "c"], ["b", "ac"]),
        ('root ::= "a" [/"] "\\"/\\\\"', ['a""/\\', 'a/"/\\'], ['a"/\\']),
    ],
    ids=[
        "chess",
        "lines",
        "lines of Windows",
        "escapes",
        "lines of old Macs",
        "escapes of C",
        "letters",
        "hyphens and carets",
        "arithmetic",
        "lists",
        "strings of XGrammar",
        "names",
        "counts",
        "empty",
        "slashes",
    ],
)
def test_the_language_of_a_grammar(source: str, accepted: list[str], rejected: list[str]) -> None:
    walker = Walker.of_language(grammar(source))
    assert [text for text in accepted if not walker.accepts(text)] == []
    assert [text for text in rejected if walker.accepts(text)] == []


def test_only_recursion_and_size_need_a_parser() -> None:
    assert [grammar(one).is_regular for one in (CHESS, LINES, ESCAPES)] == [True] * 3
    doubled = [f'a{index} ::= a{index + 1} | "x" a{index + 1} a{index + 1}' for index in range(40)]
    large = "\n".join(["root ::= a0", *doubled, 'a40 ::= "y"'])
    assert [grammar(one).is_regular for one in (ARITHMETIC, LIST, large)] == [False] * 3
    assert Walker.of_language(grammar(large)).accepts("xyy")


@pytest.mark.parametrize(
    "body",
    [
        '"a" root | "b"',
        '"b" | "a" root',
        '"b" | "a" ("a" root | root | "b")',
        '("a" root | )  | "b"',
        '"a"* ("b" | "ab" | "a" root?)',
    ],
)
def test_a_rule_that_ends_with_itself_is_a_repetition(body: str) -> None:
    """As a rule, a string of XGrammar's JSON has so many open levels that a mask exceeds its limits."""
    assert grammar(f"root ::= {body}").is_regular
    inside = grammar(f'root ::= "(" root ")" | x\nx ::= {body.replace("root", "x")}')
    (rule,) = [line for line in inside.grammar.splitlines() if line.startswith("x:")]
    assert "x" not in rule.removeprefix("x:")
    walker = Walker.of_language(inside)
    assert walker.accepts("(" + "a" * 300 + "b)")
    assert not walker.accepts("(abb)")


WORDS = [f"{'a' * size}." for size in range(1, 300)] + [f"w{number}" for number in range(3_000)]


def test_thousands_of_words_are_a_regular_expression() -> None:
    words = " | ".join(f'"{word}"' for word in WORDS)
    assert grammar(f"root ::= ({words}) [.]").is_regular


def test_thousands_of_words_in_a_recursive_grammar_are_a_tree() -> None:
    words = " | ".join(f'"{word}" ("!" | x)?' for word in WORDS)
    inside = grammar(f'root ::= x x?\nx ::= "(" x ")" | {words} | "a" | ""')
    assert max(line.count("|") for line in inside.grammar.splitlines()) < 100
    walker = Walker.of_language(inside)
    accepted = ["", "a", "aa", "a" * 299 + ".", "a.!", "w2999!", "((w10))w1", "w1(w99!)", "aaa.w1w2"]
    assert [text for text in accepted if not walker.accepts(text)] == []
    assert not any(map(walker.accepts, ["w3000", "b", "w", "(a", "w01", "a!!", "a" * 302 + "."]))


@pytest.mark.parametrize("depth", [30, MAX_NESTING])
def test_parentheses_may_nest_deep_in_a_recursive_grammar(depth: int) -> None:
    """llama.cpp writes names that a JSON object does not have so, one parenthesis a character."""
    nested = "".join('("a" | "c" ' for _ in range(depth)) + "x" + ")" * depth
    walker = Walker.of_language(grammar(f'root ::= {nested}\nx ::= "!" | "[" root "]"'))
    accepted = ["a", "ca", "c" * depth + "!", "c" * depth + "[ca]"]
    assert [text for text in accepted if not walker.accepts(text)] == []
    assert not any(map(walker.accepts, ["cc[a]", "c" * depth, "c" * depth + "[c]"]))


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("factored", [False, True])
def test_random_grammars_have_the_language_of_their_rules(
    seed: int, factored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if factored:
        monkeypatch.setattr("draftline.structured.grammar.ebnf_factoring._FEW", 0)
        monkeypatch.setattr("draftline.structured.grammar.ebnf_factoring._DEEP", 0)
    rules = _random_rules(random.Random(seed))
    source = "\n".join(f"{name} ::= {_text(body)}" for name, body in rules.items())
    try:
        walker = Walker.of_language(grammar(source))
    except InvalidConstraintError as error:
        assert "matches no finite text" in str(error)  # noqa: PT017
        return
    for size in range(5):
        for text in map("".join, itertools.product("ab", repeat=size)):
            assert walker.accepts(text) == _derives(rules, text), (source, text)


def _random_rules(source: random.Random) -> dict[str, Expression]:
    names = [ROOT, "x", "y"]

    def expression(depth: int) -> Expression:
        kind = source.randrange(6 if depth else 2)
        if kind == 0:
            return Concatenation(tuple(_character(one) for one in source.choice(["a", "b", "ab", "ba", "aab", ""])))
        if kind == 1:
            return Rule(source.choice(names)) if source.random() < 0.4 else _character(source.choice(["a", "b", "ab"]))
        if kind == 2:
            low = source.randrange(2)
            return Times(expression(depth - 1), low, source.choice([None, low + 1]))
        parts = tuple(expression(depth - 1) for _ in range(source.randint(2, 3)))
        return Alternation(parts) if kind == 3 else Concatenation(parts)

    return {name: expression(3) for name in names}


def _character(characters: str) -> Character:
    return Character(tuple((ord(one), ord(one)) for one in characters) if characters != "ab" else ((97, 98),))


def _text(expression: Expression) -> str:
    match expression:
        case Character(((low, high),)):
            return f"[{chr(low)}-{chr(high)}]"
        case Rule(name):
            return name
        case Concatenation(parts):
            return f"({' '.join(map(_text, parts))})"
        case Alternation(options):
            return f"({' | '.join(map(_text, options))})"
        case Times(part, low, high):
            return f"({_text(part)}){{{low},{'' if high is None else high}}}"
    raise AssertionError(expression)


def _derives(rules: Mapping[str, Expression], text: str) -> bool:
    """Whether the rules derive the text, by adding ends of parts until there are no new ones."""
    known: dict[tuple[str, int], frozenset[int]] = {}

    def ends(expression: Expression, at: int) -> frozenset[int]:
        match expression:
            case Character(characters):
                fits = at < len(text) and any(low <= ord(text[at]) <= high for low, high in characters)
                return frozenset([at + 1] if fits else [])
            case Rule(name):
                return known.setdefault((name, at), frozenset())
            case Concatenation(parts):
                here = frozenset([at])
                for part in parts:
                    here = frozenset(end for start in here for end in ends(part, start))
                return here
            case Alternation(options):
                return frozenset(end for option in options for end in ends(option, at))
            case Times(part, low, high):
                here, found = frozenset([at]), set[int]()
                # More rounds than characters find nothing new but by empty parts.
                for times in range((len(text) + low + 2 if high is None else high) + 1):
                    if times >= low:
                        found |= here
                    here = frozenset(end for start in here for end in ends(part, start))
                return frozenset(found)

    while True:
        before = dict(known)
        whole = ends(Rule(ROOT), 0)
        for name, at in list(known):
            known[name, at] = ends(rules[name], at)
        if known == before:
            return len(text) in whole


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ('root ::= "a"\n  | <[1000]>', r"cannot be read: line 2, at '<\[1000\]>': expected a rule"),
        (r'root ::= "\ud83d\ude00"', r"\\ud83d is no character: write \\U and the eight digits"),
        (r'root ::= "\U99999999"', "is no character"),
        (r'root ::= "\d"', r"the escape \\d is not known"),
        ('root ::= "a', "line 1, at '\"a': expected a rule"),
        ('root ::= "a" b', "line 1, at 'b': the rule 'b' is not defined"),
        ('root ::= "a"\n\nroot ::= "b"', "line 3, at 'root ::= .*the rule 'root' is defined twice"),
        ('start ::= "a"', "has no rule 'root'"),
        ('root ::= ("a"', "the parenthesis does not end"),
        ('root ::= "a")', "a parenthesis ends that was not begun"),
        ('root ::= | * "a"', r"at '\* .*nothing stands before the repetition"),
        ('root ::= "a"?*', "nothing stands before the repetition"),
        ('root ::= "a"{3,2}', "at least 3 and at most 2 times"),
        ("root ::= [b-a]", "a range ends before it begins, at 'b'"),
        ("root ::= []", "a set has no characters"),
        ("root ::= [^]", "a set has no characters"),
        (r'root ::= "\x41B"', r"\\x41 is followed by one more digit: write \\u0041"),
        (r"root ::= [\x1fa-f]", r"\\x1f is followed by one more digit"),
        ('root ::= "a"{' + "9" * 5000 + "}", "a count has more than 9 digits"),
        ('<root> ::= "a"', "line 1, at '<root> ::= \"a\"': expected a rule"),
        ('root[max_tokens=10] ::= "a"', "line 1, at '::= "),
        ("root ::= " + "(" * 200, "parentheses nest deeper than 100"),
        ('root ::= "a" x\nx ::= "b" x', "the rule 'x' matches no finite text"),
        ('root ::= "a" TagDispatch(("b", root))', "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_refused(source: str, message: str) -> None:
    assert is_ebnf(source)
    with pytest.raises(InvalidConstraintError, match=message):
        grammar(source)


def test_a_lark_grammar_may_mention_the_sign() -> None:
    lark = 'start: name " ::= " name\nname: /[a-z]/\n'
    assert grammar(lark).grammar == lark


def test_many_rules_of_one_name_but_for_its_case_are_told_apart() -> None:
    source = 'root ::= "(" root ")" | a-b | a_b | A-B | start\na-b ::= "1"\na_b ::= "2"\nA-B ::= "3"\nstart ::= "4"'
    walker = Walker.of_language(grammar(source))
    assert [text for text in ("1", "2", "3", "4", "(3)", "5") if walker.accepts(text)] == ["1", "2", "3", "4", "(3)"]


def test_long_sources_are_read_in_linear_time() -> None:
    """In quadratic time, each takes longer than a test may."""
    assert not is_ebnf("\n" * MAX_GRAMMAR_BYTES)
    rules = [f"{index:x}::={index + 1:x}" for index in range(80_000)]
    chain = "\n".join(["root ::= 0", *rules, f'{80_000:x} ::= "x"'])
    assert grammar(chain).grammar.endswith(": /x/")
