r"""``\p{…}`` in ECMA-262 has the characters that validators give it."""

from __future__ import annotations

import json
import unicodedata

import jsonschema_rs
import pytest
from walk import Walker

from draftline.structured.json_schema import json_schema_language
from draftline.structured.regular import ecma
from draftline.structured.regular.dfa import build
from draftline.structured.regular.expression import without_anchors

PROPERTIES = [
    "ASCII", "AHex", "Any", "White_Space", "space", "Emoji", "EPres", "EComp", "Emoji_Modifier", "EBase", "ExtPict",
    "Regional_Indicator", "RI", "L", "Letter", "LC", "gc=Cased_Letter", "General_Category=punct", "digit", "Combining_Mark",
    *(f"Script={name}" for name in ("Arabic", "Armenian", "Cyrillic", "Devanagari", "Georgian", "Greek", "Han", "Hangul", "Hebrew")),
    *(f"sc={name}" for name in ("Hira", "Kana", "Latn", "Thai")),
]  # fmt: skip


@pytest.mark.parametrize("name", PROPERTIES)
def test_a_property_has_the_characters_that_a_validator_gives_it(name: str) -> None:
    inside, outside = rf"^\p{{{name}}}$", rf"^\P{{{name}}}$"
    judge = jsonschema_rs.validator_for({"type": "string", "pattern": inside})
    automata = [build(without_anchors(ecma.parse(pattern))) for pattern in (inside, outside)]
    edges = {start + near for one in automata for start in one.starts for near in (-1, 0, 1)}
    characters = [
        chr(code)
        for code in sorted(edges | {*range(0x250), *range(0x1F000, 0x1FA00, 7)})
        if 0 <= code < 0xD800 or code >= 0xE000
    ]
    known = [one for one in characters if ord(one) <= 0x10FFFF and unicodedata.category(one) != "Cn"]
    assert len(known) > 700
    for one in known:
        if name == "ExtPict" and not any(each.matches(one) for each in automata):
            continue  # versions of Unicode differ, as do validators
        assert [each.matches(one) for each in automata] == [judge.is_valid(one), not judge.is_valid(one)], ascii(one)


def test_the_emoji_of_zod() -> None:
    for pattern in (
        r"^(\p{Extended_Pictographic}|\p{Emoji_Component})+$",
        r"^(?=[\s\S]*[\p{Extended_Pictographic}\p{Regional_Indicator}\u20E3])[\p{Extended_Pictographic}\p{Emoji_Component}]+$",
    ):
        schema = {"type": "string", "pattern": pattern}
        walker = Walker.of_language(json_schema_language(json.dumps(schema)))
        assert walker.accepts('"😀👩‍🚀🇩🇪"')
        assert walker.accepts('"\\ud83d\\ude00"')
        assert not walker.accepts('"a😀"')


def test_symbols_that_are_pictographs_in_some_versions_are_in_no_class() -> None:
    for pattern in (r"^\p{ExtPict}$", r"^\P{ExtPict}$", r"^[^\p{ExtPict}\d]$", r"^[\P{ExtPict}1]$"):
        assert not build(without_anchors(ecma.parse(pattern))).matches("★"), pattern
    assert build(without_anchors(ecma.parse(r"^[^\p{Emoji}][\p{ExtPict}★]$"))).matches("★★")


@pytest.mark.parametrize(
    "name",
    ["Latin", "Script=Klingon", "gc=Emoji", "sc=Emoji", "Script=ASCII", "toString", "letter", "gc:Lu", "scx=Greek"],
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ecma.UntranslatablePatternError, match=f"the Unicode property {name}$"):
        ecma.parse(rf"\p{{{name}}}")
