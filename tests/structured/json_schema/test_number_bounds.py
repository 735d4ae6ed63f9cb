"""Texts of numbers near bounds: what a reader of 64-bit floats finds in them is within the bounds."""

from __future__ import annotations

import json
import math
import random
from fractions import Fraction

import pytest
from walk import Walker

from draftline.structured.errors import InvalidConstraintError
from draftline.structured.json_schema import decimals, json_schema_language
from draftline.structured.regular.dfa import Dfa
from draftline.structured.regular.expression import to_tree
from draftline.structured.regular.syntax import Node

_TOP = "1.7976931348623157e+308"


def _walkers(schema: str) -> list[Walker]:
    language = json_schema_language(schema)
    return [Walker.of_grammar(language.grammar)] + ([Walker.of_regex(language.regex)] if language.regex else [])


@pytest.mark.parametrize(
    ("bounds", "accepted", "rejected"),
    [
        (
            '"maximum": 9223372036854775807',
            "9223372036854775807 9223372036854774784.0 9.223372036854775e18 1e+16",
            "9223372036854775808 9223372036854775806.5 9223372036854775807.0 9.223372036854776e18 1e19",
        ),
        (
            '"minimum": -9223372036854775807',
            "-9223372036854775807 -9.223372036854775e+18",
            "-9223372036854775806.5 -9.223372036854776e18",
        ),
        ('"maximum": 123456789012345678', "123456789012345678", "123456789012345677.4 123456789012345678.0"),
        ('"maximum": 99999999999999999999', "99999999999999999999 9.9e+19", "99999999999999999999.0"),
        ('"minimum": 9007199254740993', "9007199254740993 9007199254740994.0", "9007199254740993.0 9007199254740992"),
        (
            '"exclusiveMaximum": 9007199254740993',
            "9007199254740992 9007199254740992.0",
            "9007199254740993 9007199254740992.5",
        ),
        ('"exclusiveMinimum": 9007199254740993', "9007199254740994 9007199254740994.0", "9007199254740993.0"),
        ('"maximum": 1e23', "1e+23 99999999999999991611392", "100000000000000000000000 1.0000000000000001e+23"),
        ('"exclusiveMaximum": 1e23', "9.999999999999997e+22", "1e+23 99999999999999999999999"),
        ('"minimum": 1e300', f"1e+300 1e300 1.5e+300 1e+307 1e308 {_TOP}", "9.999999999999999e+299 1.8e308"),
        ('"maximum": 1' + "0" * 300, "1" + "0" * 300, "1e+300"),
        ('"maximum": 1' + "0" * 309, f"1e308 {_TOP} 1{'0' * 309}", f"1{'0' * 309}.0"),
        ('"exclusiveMaximum": 5.00000000000000001', "4 4.999", "5 5.0"),
        ('"exclusiveMinimum": 9007199254740991.7', "9007199254740993", "9007199254740992 9007199254740992.0"),
        ('"not": {"maximum": 4.99999999999999999}', "6 5.001", "5 5.0"),
        ("", f"1e308 -{_TOP} 1.7e+308", "1.8e308 1.7976931348623159e308 9e308 1e309"),
        ('"const": 1e308', "1e+308", "1" + "0" * 308),
        ('"const": 1e307', "1e+307", "1e306"),
        (
            '"exclusiveMinimum": 9007199254740992, "maximum": 9007199254740993, "multipleOf": 0.01',
            "9007199254740993",
            "9007199254740992.41 9007199254740992.99 9007199254740993.0",
        ),
        ('"exclusiveMinimum": 0.29999999999999999, "maximum": 1, "multipleOf": 0.1', "0.4 1 1.0", "0.3 1.1"),
        ('"exclusiveMinimum": 3.69999999999999999, "multipleOf": 0.37', "4.07", "3.7 3.70"),
        ('"exclusiveMinimum": 0.29999999999999999, "multipleOf": 0.1', "0.4 1 1.0 1234.5", "0.3 0.30 0.2"),
    ],
)
def test_bounds_at_which_readers_round(bounds: str, accepted: str, rejected: str) -> None:
    for one in _walkers(f'{{"type": "number"{"," * bool(bounds)} {bounds}}}'):
        assert [text for text in accepted.split() if not one.accepts(text)] == []
        assert [text for text in rejected.split() if one.accepts(text)] == []


def test_large_floats_in_arrays() -> None:
    for one in _walkers('{"enum": [[1e308], [1e23]]}'):
        assert [one.accepts(text) for text in ("[1e+308]", "[1e+23]", "[1e+307]")] == [True, True, False]


@pytest.mark.parametrize("bound", ["1e16", "1e300", "1e303", "1e305", "1e307", "2.5e307", "9.99e307", "1.7e308"])
def test_an_excluded_double_is_excluded(bound: str) -> None:
    beyond = repr(math.nextafter(float(bound), math.inf))
    for keyword, sign in (("exclusiveMinimum", ""), ("exclusiveMaximum", "-")):
        for one in _walkers(f'{{"type": "number", "format": "double", "{keyword}": {sign}{bound}}}'):
            texts = (bound, repr(float(bound)), beyond, _TOP)
            assert [one.accepts(f"{sign}{text}") for text in texts] == [False, False, True, True]


def _bound(source: random.Random) -> str:
    """A bound at which readers round, in one of its spellings."""
    size = source.choice([1, 53, 54, 60, 64, 77, 130, 400, 997, 1020, 1023])
    value = source.randrange(2**size, 2 ** (size + 1))
    if source.random() < 0.3:
        value = int(float(f"{value:.3e}")) if size < 1023 else value
    text = source.choice([str(value), repr(float(value)), f"{value:e}".replace("+", ""), f"{value}.25"])
    return source.choice(["", "-"]) + (text if math.isfinite(float(text)) else "1.5e308")


def _texts_near(bound: str, source: random.Random) -> list[str]:
    texts = [bound]
    value, exact = float(bound), int(Fraction(bound))
    for _ in range(4):
        value = math.nextafter(value, source.choice([-math.inf, math.inf]))
        exact += source.choice([-1, 1, 0, 10, -10])
        whole = int(value)
        texts += [repr(value), str(whole), f"{whole}.0", str(exact), f"{exact}.0", f"{exact}.5", f"{exact}.49999"]
        texts += [f"{value:.17e}".replace("+", ""), f"{value:.16e}", f"{value:.4e}", repr(value).replace("e+", "E")]
        digits = str(abs(exact))
        sign = "-" * (exact < 0)
        texts.append(f"{sign}{digits[0]}.{digits[1:] or 0}{source.choice(['', '1', '49', '5'])}e{len(digits) - 1}")
    return [text for text in texts if "inf" not in text]


def _is_inside(value: float, keyword: str, bound: str) -> bool:
    if isinstance(value, float) and not math.isfinite(value):
        return False
    exact, limit = Fraction(value), Fraction(json.loads(bound))
    if exact == limit:
        return not keyword.startswith("exclusive")
    return (exact > limit) == keyword.endswith("inimum")


@pytest.mark.parametrize("seed", [*range(30), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(30, 80))])
def test_readers_find_texts_within_the_bounds(seed: int) -> None:
    source = random.Random(seed)
    kind = '"type": "number"' + ', "format": "double"' * (seed % 3 == 0)
    lower, upper = source.choice(["minimum", "exclusiveMinimum"]), source.choice(["maximum", "exclusiveMaximum"])
    bound = _bound(source)
    bounds = {source.choice([lower, upper]): bound}
    if seed % 2:
        other = source.choice(_texts_near(bound, source))
        low, high = sorted([bound, other], key=Fraction)
        bounds = {lower: low, upper: high}
    try:
        named = ", ".join(f'"{name}": {value}' for name, value in bounds.items())
        walkers = _walkers(f"{{{kind}, {named}}}")
    except InvalidConstraintError:
        walkers = []
    for text in [text for value in bounds.values() for text in _texts_near(value, source)]:
        value = json.loads(text)
        inside = all(_is_inside(value, *one) for one in bounds.items())
        assert inside or not any(one.accepts(text) for one in walkers), (bounds, text)
        if inside and isinstance(value, float) and abs(value) >= 2**53:
            assert walkers, (bounds, text)
            assert all(one.accepts(json.dumps(value)) for one in walkers), (bounds, text)


@pytest.mark.parametrize("seed", [*range(14), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(14, 40))])
def test_readers_find_multiples_within_the_bounds(seed: int) -> None:
    source = random.Random(seed)
    step = source.choice(["0.01", "0.1", "0.5", "0.25", "2.5"])
    size = source.choice([10**3, 10**9, 10**13, 2**53, 2**60])
    low = source.choice(
        [str(size), str(size - 1), f"{size - 1}.7", repr(math.nextafter(size, 0)), f"{size}.00000000000000001"]
    )
    bounds = {source.choice(["minimum", "exclusiveMinimum"]): low}
    if seed % 2:
        bounds[source.choice(["maximum", "exclusiveMaximum"])] = str(size + source.choice([1, 2, 300]))
    named = "".join(f', "{name}": {value}' for name, value in bounds.items())
    try:
        walkers = _walkers(f'{{"type": "number", "multipleOf": {step}{named}}}')
    except InvalidConstraintError:
        return
    for _ in range(100):
        exact = int(float(low)) + source.randrange(-300, 300) * Fraction(step)
        text = source.choice(
            [f"{int(exact)}.{int(exact % 1 * 1000):03}".rstrip("0"), str(int(exact)), f"{int(exact)}.0"]
        )
        if text[-1] != "." and any(one.accepts(text) for one in walkers):
            assert Fraction(text) % Fraction(step) == 0
            assert all(_is_inside(json.loads(text), *one) for one in bounds.items()), (bounds, text)


@pytest.mark.parametrize(
    ("schema", "accepted", "rejected"),
    [
        (
            '"not": {"type": "integer"}',
            "0.12345678 123456789.1 -0.1234567890123456 123456789012345.5 1.23456789012345678 1e-05",
            "1 1.0 0.00 1.00000000000000001 9.99999999999999999 1234567890123456.5 1e16",
        ),
        ('"not": {"multipleOf": 2}', "0.12345678 123456789.1 123456789.0 3 -3.0", "2 2.0 123456788.0"),
        (
            '"not": {"multipleOf": 10}, "minimum": 5, "maximum": 20000.5',
            "5 11.0 20000.5 12.3456789012",
            "10 10.0 20000.51",
        ),
    ],
)
def test_numbers_that_are_no_multiples(schema: str, accepted: str, rejected: str) -> None:
    for one in _walkers(f'{{"type": "number", {schema}}}'):
        assert [text for text in accepted.split() if not one.accepts(text)] == []
        assert [text for text in rejected.split() if one.accepts(text)] == []


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 20))])
def test_readers_find_no_multiples(seed: int) -> None:
    source = random.Random(seed)
    step = source.choice([1, 1, 2, 5, 10])
    low = source.choice([None, 0, 5, -123.45])
    bound = "" if low is None else f', "exclusiveMinimum": {low}'
    walkers = _walkers(f'{{"type": "number", "not": {{"multipleOf": {step}}}{bound}}}')
    for _ in range(300):
        sign, whole = source.choice(["", "-"]), source.randrange(10 ** source.randrange(1, 18))
        same = source.choice("09") * source.randrange(18)
        text = f"{sign}{whole}.{same}{source.randrange(10 ** source.randrange(1, 5))}"
        if any(one.accepts(text) for one in walkers):
            assert float(text) % step, text
            assert low is None or float(text) > low, text
        value = source.uniform(-1, 1) * 10 ** source.randrange(15)
        if (
            abs(value) > 1e-4
            and (low is None or value > low)
            and abs(value - round(value)) > 1e-15 * max(1, abs(value))
        ):
            assert all(one.accepts(json.dumps(value)) for one in walkers), value


def test_an_expression_that_is_too_large_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Dfa] = []

    def counted(automaton: Dfa) -> Node:
        tried.append(automaton)
        return to_tree(automaton)

    monkeypatch.setattr(decimals, "to_tree", counted)
    schema = {"type": "object", "properties": {name: {"type": "integer", "multipleOf": 499} for name in "abc"}}
    language = json_schema_language(json.dumps(schema), integers="plain")
    assert Walker.of_grammar(language.grammar).accepts('{"a": 998, "b": -499}')
    assert len(tried) == 1
