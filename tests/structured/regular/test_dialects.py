"""Rust's and Python's regular expressions: every text of a tree is one that the other library matches."""

from __future__ import annotations

import random
import re
from itertools import product

import pytest
from pydantic_core import SchemaValidator
from walk import Walker

from draftline.structured.regular import ecma, python_re, rust
from draftline.structured.regular.ecma_text import ecma_text, whole
from draftline.structured.regular.expression import without_anchors
from draftline.structured.regular.syntax import Node, to_regex

RUST = [
    r"^\d{3}-[a-z]+$",
    r"\d+|x",
    r"^(?i)ab[^k]$",
    r"^(?i:a)b$",
    r"^[a-z&&[^aeiou]]+$",
    r"^[\w--\d]{1,3}$",
    r"^[a-c~~b-d]$",
    r"^\p{Lu}\pL*\z",
    r"^\P{L}$",
    r"^[\P{C}\n]\p{Cc}[^\p{C}]$",
    r"^[[:alpha:]_][[:^digit:]]$",
    r"\A(?P<x>a|b)*?c",
    r"^[]a]-?$",
    r"^[\w.-]+@\w{2,}$",
    r"^[^\d\s\W]{2}$",
    r"^\D\S\W$",
    r"^.$",
    r"^(?s:.)$",
    r"^\u{41}\x42\u0043\n$",
    r"^(a|)(b||c)$",
    r"^a{2}{2}$",
    r"^\.\*\[\/\-$",
    r"\b[aé.]\b.*\B",
    r"(?m)\A^[ab]{1,2}$\n^c\d$\n?\z",
    r"\A(?m:^a$)\n.$",
    "(?x) ^ [ ^ a - f # letters\n  \\ ] {2} (?: \\# | x y )+ $ # the end",
    "(?x)[ ^]a ] \\  (?-x: b) | c",
    r"^[--a][^---a][---a][]-a][^]-a-c]$",
    "(?x)^[ - - a ][ ^ ] - a ]$",
    "(?x) ^ a{2} ? b* ? $",
    r"(?i)^[^\d][^\u017f\s][^\u212a]$",
    r"^\p{Greek}\p{sc=Han}\P{Script=Cyrl}$",
    r"^\p{Emoji}[\p{ASCII}&&\p{Lowercase}]\P{Alphabetic}\p{gc=Lu}\p{Upper}$",
    r"^\p{greek}\P{script: HAN}\p{gc!=uppercase letter}\P{General_Category!=Cased-Letter}\p{isLatin}\p{punct}\pl$",
]


def texts(tree: Node, rounds: int = 40) -> list[str]:
    walker = Walker.of_regex(to_regex(without_anchors(tree)))
    source = random.Random(5)
    return [text for _ in range(rounds) if (text := walker.write(source, 60)) is not None]


@pytest.mark.parametrize("pattern", RUST)
def test_rust_s_crate_matches_every_text(pattern: str) -> None:
    validator = SchemaValidator({"type": "str", "pattern": pattern})
    found = texts(rust.parse(pattern))
    assert found
    for text in found:
        validator.validate_python(text)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"(?m)^a$", "b\na\nc"),
        ("(?x) ^ \\d + # a number\n $", "12"),
        (r"^[--a][]-a]$", "a-"),
        (r"(?i)^[^\s\d@]+@[^é]$", "Ada@x"),
        (r"^[\p{Han}\p{Hiragana}]+$", "漢じ"),
        (r"^\p{Emoji_Presentation}$", "😀"),
        (r"^\p{Alphabetic}\P{Uppercase}$", "éa"),
        (r"^\p{greek}\p{Script:Han}\P{gc!=upper_case letter}$", "λ山É"),
    ],
)
def test_rust_s_flags_and_properties_leave_texts(pattern: str, text: str) -> None:
    assert Walker.of_regex(to_regex(without_anchors(rust.parse(pattern)))).accepts(text)


@pytest.mark.parametrize("pattern", RUST)
def test_a_tree_is_written_as_an_ecma_pattern(pattern: str) -> None:
    tree = rust.parse(pattern)
    assert ecma.parse(ecma_text(tree)) == tree


@pytest.mark.parametrize(
    ("pattern", "construct"),
    [
        (r"\b{start}word", r"the word boundary \\b"),
        (r"\<word", r"the word boundary \\<"),
        (r"(?R)^a", "the flag R"),
        (r"(?x)( ?:a)", "white space before the \\? of a group"),
        (r"\p{Tibetan}", "the Unicode property Tibetan"),
        (r"\p{scx=Grek}", "the Unicode property scx=Grek"),
        (r"\p{sc=Letter}", "the Unicode property sc=Letter"),
        (r"[\P{gc:Greek}]", "the Unicode property gc:Greek"),
        (r"\p{Unassigned}", "the Unicode property Unassigned"),
        (r"(?-u:\w)", "the flag -u"),
    ],
)
def test_rust_s_other_constructs_are_named(pattern: str, construct: str) -> None:
    with pytest.raises(ecma.UntranslatablePatternError, match=construct):
        rust.parse(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        r"^\d{3}-[a-z]+$",
        r"[^\W\d_]{2}",
        r"(?P<x>a|bc)*?\Z",
        r"^[^x\s]y.$",
        r"(?s)^a.b$",
        r"\A\S\D\W$",
        "a|^b",
        r"^(?=\D*\d)(?!.*\s)[^x]{2,4}$",
        r"^(?!a$|\w\w)[ab\n.]{1,2}\Z",
        r"^(?!(?!\d)|(?=.5))\w\d?(?!)?",
        "^(?:(?!ab)[abc])*$",
        r"^[ab.]{1,3}(?<!\.)(?<=b|\.)c$",
        r"^(?:(?<!a)\w|(?<=^a)a){2,3}\Z",
        r"^.(?<!\w)x",
        r"^.?\b[xé].\b.?$",
        r"\B.?\B",
        r"^(?!.*\bx)(?!.*y\B).{1,3}$",
        r"(?i)^sk-[a-f]{2}$",
        r"^(?i:ab)c[^k](?-i:d)$",
        r"(?i)^[^\W\d_i]{2}[^sé][K-Z]$",
        r"(?is)^(?!I|\u0130|[s-t]).(?<!K)[^i]$",
        r"(?x) ^ a b $ # two letters",
        r"(?m)\A^[ab]{1,2}$\n^c\d$\n?\Z",
        r"(?m)\A[a\n]{2,4}^b$[\nc]{0,2}\Z",
        r"(?m)^(?!.*x$).{1,3}$",
        r"\A(?m:^a$)\n.$",
        r"(?sm)\A.{1,3}(?-m:$)",
        r"(?a)^\d\s\w\D\S\W$",
        r"(?a)^[\d\s]{2}[^\w\s]$",
        r"(?ai)^[^k\W]s[a-c\u0130]$",
        r"(?a)^.?\b[xé].\b.?$",
        r"^(?a:\w\b.)\w$",
    ],
)
def test_python_s_re_matches_every_text(pattern: str) -> None:
    found = texts(python_re.parse(pattern))
    assert found
    assert [text for text in found if re.search(pattern, text) is None] == []


@pytest.mark.parametrize(
    "pattern",
    [
        "(?m)^a$",
        "(?m)^$",
        r"(?m)a$\n^b",
        "(?m)(?!.*b$)^a",
        "(?m:^)b",
        r"(?m)\Aa|b\Z",
        r"(?a)\w\b\W",
        r"(?a)\B[^\s]\B",
        "(?ai)[^A]$",
        "(?a)(?i:a(?u:b))",
    ],
)
def test_the_flags_m_and_a_are_translated_exactly(pattern: str) -> None:
    """Every short text that re finds a match in is one of the tree, and no other."""
    expression = to_regex(without_anchors(python_re.parse(pattern)))
    validator = SchemaValidator({"type": "str", "pattern": rf"\A(?:{expression})\z"})
    short = ["".join(text) for length in range(4) for text in product("aAb\né", repeat=length)]
    assert [text for text in short if validator.isinstance_python(text)] == [
        text for text in short if re.search(pattern, text)
    ]


@pytest.mark.parametrize(
    ("pattern", "construct"),
    [
        ("(?<=a(?=b))", r"a lookahead, \$ or \\b in a lookbehind"),
        ("(?!a(?<!b))", r"a lookbehind or \\b in a lookahead that is not at the start"),
        (r"(a)\1", "a backreference"),
        ("(?:^)*a", "a repeated anchor"),
        ("x*+", "a possessive repetition"),
    ],
)
def test_python_s_other_constructs_are_named(pattern: str, construct: str) -> None:
    with pytest.raises(ecma.UntranslatablePatternError, match=construct):
        python_re.parse(pattern)


def test_whole_anchors_every_alternative() -> None:
    assert whole(ecma.parse("a|b")) == "^(?:[a-b])$"
    assert whole(ecma.parse("a|bc")) == "^(?:a|bc)$"
