r"""The JSON texts of strings, as syntax trees over the characters of the text.

Every character has a canonical spelling: itself, or the short escape that JSON requires. Characters that json.dumps
escapes by default may also be written \uXXXX, with digits of either case, and as a surrogate pair beyond the basic
plane. No other escapes are allowed: a value has few texts, and two spellings of one name never count as two names.
"""

import functools
from typing import Final

from draftline.structured.regular import charset
from draftline.structured.regular.charset import CharSet
from draftline.structured.regular.syntax import Alt, Chars, Node, Repeat, Seq, alt, literal, repeat, seq

_SHORT: Final = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_CONTROL: Final = charset.charset([(0, 0x1F)])
_RAW: Final = charset.difference(charset.complement(_CONTROL), charset.of('"\\'))
_ESCAPED: Final = charset.union(
    charset.difference(_CONTROL, charset.of("".join(_SHORT))), charset.complement(charset.charset([(0, 0x7E)]))
)
_QUOTE: Final = literal('"')


@functools.lru_cache(maxsize=4096)
def string_text(value: Node) -> Node:
    """The JSON texts of the strings that ``value`` matches, an anchor-free tree over unescaped characters."""
    memo: dict[int, Node] = {}

    def spell(node: Node) -> Node:
        known = memo.get(id(node))
        if known is None:
            if isinstance(node, Chars):
                known = _spellings(node.set)
            elif isinstance(node, Seq):
                known = seq(*(spell(part) for part in node.parts))
            elif isinstance(node, Alt):
                known = alt(spell(option) for option in node.options)
            elif isinstance(node, Repeat):
                known = repeat(spell(node.node), node.low, node.high)
            else:
                known = node
            memo[id(node)] = known
        return known

    return seq(_QUOTE, spell(value), _QUOTE)


@functools.lru_cache(maxsize=4096)
def _spellings(characters: CharSet) -> Node:
    options: list[Node] = [Chars(charset.intersection(characters, _RAW))]
    for character, escape in _SHORT.items():
        if charset.intersection(characters, charset.of(character)):
            options.append(literal(escape))
    escaped: list[Node] = []
    for low, high in charset.intersection(characters, _ESCAPED):
        if low <= 0xFFFF:
            escaped.extend(_hex_range(low, min(high, 0xFFFF)))
        if high > 0xFFFF:
            escaped.extend(_surrogate_range(max(low, 0x10000), high))
    if escaped:
        options.append(seq(literal("\\u"), _by_first_digit(escaped)))
    return alt(options)


def _by_first_digit(options: list[Node]) -> Node:
    """The options as a tree of their digits, which takes an automaton less time to read than a list of them."""
    tails: dict[Node, list[Node]] = {}
    for option in options:
        first, *rest = option.parts if isinstance(option, Seq) else (option,)
        tails.setdefault(first, []).append(seq(*rest))
    # First digits with the same digits behind them are one.
    firsts: dict[Node, list[Node]] = {}
    for first, rest in tails.items():
        firsts.setdefault(_by_first_digit(rest) if len(rest) > 1 else rest[0], []).append(first)
    return alt(seq(alt(one), rest) for rest, one in firsts.items())


def _digit(low: int, high: int) -> Chars:
    """One hexadecimal digit, of either case."""
    digits = "0123456789abcdef"[low : high + 1]
    return Chars(charset.of(digits + digits.upper()))


def _hex_range(low: int, high: int, width: int = 4) -> list[Node]:
    """The numbers from ``low`` to ``high``, written with ``width`` hexadecimal digits."""
    if width == 0:
        return [Seq(())]
    unit = 16 ** (width - 1)
    first, last = low // unit, high // unit
    if first == last:
        return [seq(_digit(first, first), tail) for tail in _hex_range(low % unit, high % unit, width - 1)]
    options: list[Node] = []
    if low % unit:
        options.extend(seq(_digit(first, first), tail) for tail in _hex_range(low % unit, unit - 1, width - 1))
        first += 1
    whole = last if high % unit == unit - 1 else last - 1
    if first <= whole:
        options.append(seq(_digit(first, whole), repeat(_digit(0, 15), width - 1, width - 1)))
    if whole < last:
        options.extend(seq(_digit(last, last), tail) for tail in _hex_range(0, high % unit, width - 1))
    return options


def _surrogate_range(low: int, high: int) -> list[Node]:
    """The surrogate pairs of characters beyond the basic plane, from behind the first escape prefix on."""

    def pair(leads: list[Node], trails: list[Node]) -> Node:
        return seq(alt(leads), literal("\\u"), alt(trails))

    def lead(first: int, last: int) -> list[Node]:
        return _hex_range(0xD800 + first, 0xD800 + last)

    def trail(first: int, last: int) -> list[Node]:
        return _hex_range(0xDC00 + first, 0xDC00 + last)

    first, first_rest = divmod(low - 0x10000, 0x400)
    last, last_rest = divmod(high - 0x10000, 0x400)
    if first == last:
        return [pair(lead(first, first), trail(first_rest, last_rest))]
    options: list[Node] = []
    if first_rest:
        options.append(pair(lead(first, first), trail(first_rest, 0x3FF)))
        first += 1
    whole = last if last_rest == 0x3FF else last - 1
    if first <= whole:
        options.append(pair(lead(first, whole), trail(0, 0x3FF)))
    if whole < last:
        options.append(pair(lead(last, last), trail(0, last_rest)))
    return options
