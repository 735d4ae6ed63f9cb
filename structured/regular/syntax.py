"""Syntax trees of regular expressions, functions that build small ones, and their text for Rust's regex engines."""

import functools
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from draftline.structured.regular import charset
from draftline.structured.regular.charset import CharSet


class _Tree:
    """The hash and the sizes of a node, computed once: trees share branches, and are compared and measured often."""

    __slots__ = ("_hash", "positions", "size")

    size: int
    """The number of nodes, shared ones counted at each place."""
    positions: int
    """The number of characters with counted repetitions written out."""
    _hash: int

    def _know(self, contents: Hashable, size: int, positions: int) -> None:
        object.__setattr__(self, "_hash", hash((type(self).__name__, contents)))
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "positions", positions)

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, slots=True)
class Chars(_Tree):
    """One character of a set. The empty set matches nothing."""

    set: CharSet

    def __post_init__(self) -> None:
        self._know(self.set, 1, 1)

    __hash__ = _Tree.__hash__


@dataclass(frozen=True, slots=True)
class Seq(_Tree):
    """The parts one after the other. No parts match the empty text."""

    parts: tuple["Node", ...]

    def __post_init__(self) -> None:
        size, positions = _sums(self.parts)
        self._know(self.parts, 1 + size, positions)

    __hash__ = _Tree.__hash__


@dataclass(frozen=True, slots=True)
class Alt(_Tree):
    """Any of two or more options."""

    options: tuple["Node", ...]

    def __post_init__(self) -> None:
        size, positions = _sums(self.options)
        self._know(self.options, 1 + size, positions)

    __hash__ = _Tree.__hash__


@dataclass(frozen=True, slots=True)
class Repeat(_Tree):
    """At least ``low`` and at most ``high`` times; None is unbounded."""

    node: "Node"
    low: int
    high: int | None

    def __post_init__(self) -> None:
        counted = self.node.positions * max(1, self.low, self.high or 0)
        self._know((self.node, self.low, self.high), 1 + self.node.size, counted)

    __hash__ = _Tree.__hash__


@dataclass(frozen=True, slots=True)
class Anchor(_Tree):
    """The start of the text, or its end."""

    end: bool

    def __post_init__(self) -> None:
        self._know(self.end, 1, 1)

    __hash__ = _Tree.__hash__


@dataclass(frozen=True, slots=True)
class Lookahead(_Tree):
    """The empty text, where the rest of the text begins with ``node``; where it does not, if ``inside`` is False."""

    node: "Node"
    inside: bool

    def __post_init__(self) -> None:
        self._know((self.node, self.inside), 1 + self.node.size, 1 + self.node.positions)

    __hash__ = _Tree.__hash__


@dataclass(frozen=True, slots=True)
class Lookbehind(_Tree):
    """The empty text, where the text before it ends with ``node``; where it does not, if ``inside`` is False.

    ``node`` has no lookahead and no end of the text. A lookahead has a lookbehind only at the start of the text.
    """

    node: "Node"
    inside: bool

    def __post_init__(self) -> None:
        self._know((self.node, self.inside), 1 + self.node.size, 1 + self.node.positions)

    __hash__ = _Tree.__hash__


def _sums(nodes: Iterable["Node"]) -> tuple[int, int]:
    size = positions = 0
    for node in nodes:
        size += node.size
        positions += node.positions
    return size, positions


Condition = Anchor | Lookahead | Lookbehind
"""What matches the empty text, depending on the text before it or behind it."""

Node = Chars | Seq | Alt | Repeat | Condition

EMPTY: Final = Seq(())
NEVER: Final = Chars(charset.NONE)
ANY_CHAR: Final = Chars(charset.ALL)
ANY_TEXT: Final = Repeat(ANY_CHAR, 0, None)


def seq(*parts: Node) -> Node:
    """The parts one after the other."""
    flat: list[Node] = []
    for part in parts:
        if isinstance(part, Seq):
            flat.extend(part.parts)
        elif isinstance(part, Chars) and not part.set:
            return NEVER
        else:
            flat.append(part)
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def alt(options: Iterable[Node]) -> Node:
    """Any of the options. Single characters become one set; duplicates are dropped."""
    characters: list[CharSet] = []
    others: dict[Node, None] = {}
    for option in options:
        for one in option.options if isinstance(option, Alt) else (option,):
            if isinstance(one, Chars):
                characters.append(one.set)
            else:
                others[one] = None
    merged = charset.union(*characters)
    flat = ([Chars(merged)] if merged else []) + list(others)
    if not flat:
        return NEVER
    return flat[0] if len(flat) == 1 else Alt(tuple(flat))


def repeat(node: Node, low: int, high: int | None) -> Node:
    """At least ``low`` and at most ``high`` times."""
    if high == 0 or node == EMPTY:
        return EMPTY
    if (low, high) == (1, 1):
        return node
    if node == NEVER:
        return EMPTY if low == 0 else NEVER
    return Repeat(node, low, high)


def optional(node: Node) -> Node:
    """Once or not at all."""
    return repeat(node, 0, 1)


@functools.lru_cache(maxsize=4096)
def literal(text: str) -> Node:
    """Exactly this text."""
    characters = tuple(map(_character, text))
    return characters[0] if len(characters) == 1 else Seq(characters)


@functools.lru_cache(maxsize=1024)
def _character(character: str) -> Node:
    return Chars(charset.of(character))


def word_boundary(word: CharSet, near_word: CharSet) -> Node:
    """The empty text between a character in ``word`` and one not in ``near_word``, or an end of the text.

    Dialects differ in which characters beyond ASCII are in words. With ``charset.WORD`` and ``charset.MAYBE_WORD``, these are
    the boundaries in all dialects; the other way round, those in any.
    """
    return alt(
        [
            seq(Lookbehind(Chars(word), inside=True), Lookahead(Chars(near_word), inside=False)),
            seq(Lookbehind(Chars(near_word), inside=False), Lookahead(Chars(word), inside=True)),
        ]
    )


def no_word_boundary(word: CharSet, near_word: CharSet) -> Node:
    """The empty text where no `word_boundary` is, with the same sets."""
    return alt(
        [
            seq(Lookbehind(Chars(word), inside=True), Lookahead(Chars(word), inside=True)),
            seq(Lookbehind(Chars(near_word), inside=False), Lookahead(Chars(near_word), inside=False)),
        ]
    )


LINE_START: Final = alt([Anchor(end=False), Lookbehind(literal("\n"), inside=True)])
LINE_END: Final = alt([Anchor(end=True), Lookahead(literal("\n"), inside=True)])
"""The empty text at the start and at the end of a line: ``^`` and ``$`` of Rust and Python under the flag ``m``."""


def has_condition(node: Node) -> bool:
    """Whether the tree contains an anchor, a lookahead or a lookbehind."""
    return any(True for _ in conditions(node))


def conditions(node: Node) -> Iterator[Condition]:
    """The conditions in a tree, and not those within another one."""
    if isinstance(node, Condition):
        yield node
    elif isinstance(node, Repeat):
        yield from conditions(node.node)
    elif isinstance(node, Seq | Alt):
        for child in node.parts if isinstance(node, Seq) else node.options:
            yield from conditions(child)


@functools.lru_cache(maxsize=4096)
def lengths(node: Node) -> tuple[int, int | None]:
    """Bounds on the length of a text of the tree, in code points; None is no bound. They may be further apart than its texts."""
    if isinstance(node, Chars):
        return 1, 1
    if isinstance(node, Repeat):
        low, high = lengths(node.node)
        longest = 0 if high == 0 else None if high is None or node.high is None else high * node.high
        return low * node.low, longest
    if isinstance(node, Seq | Alt):
        total = isinstance(node, Seq)
        inside = [lengths(child) for child in (node.parts if isinstance(node, Seq) else node.options)]
        lows, highs = [low for low, _ in inside], [high for _, high in inside if high is not None]
        longest = None if len(highs) < len(inside) else sum(highs) if total else max(highs)
        return sum(lows) if total else min(lows), longest
    return 0, 0


MAX_NESTING: Final = 247
"""The deepest `nesting` of an expression, with what its users put around it. Rust's crate allows 250."""


@functools.lru_cache(maxsize=4096)
def nesting(node: Node) -> int:
    """How deep the text of a tree nests, as Rust's crate counts: groups, repetitions, alternatives, sequences and classes."""
    if isinstance(node, Seq):
        return 1 + max((nesting(part) + _needs_group(part) for part in node.parts), default=0)
    if isinstance(node, Alt):
        named = [option for option in node.options if option != EMPTY]
        return max(map(nesting, named)) + (len(named) > 1) + 2 * (len(named) < len(node.options))
    return 2 + nesting(node.node) if isinstance(node, Repeat) else 1


def behind_start(node: Node) -> Node:
    """The tree of what matches behind the start of the text, where "^" never does."""
    if isinstance(node, Anchor):
        return node if node.end else NEVER
    if isinstance(node, Lookahead):
        return Lookahead(behind_start(node.node), node.inside)
    if isinstance(node, Repeat):
        return repeat(behind_start(node.node), node.low, node.high)
    if isinstance(node, Seq):
        return seq(*map(behind_start, node.parts))
    return alt(map(behind_start, node.options)) if isinstance(node, Alt) else node


def to_regex(node: Node) -> str:
    """The text of a tree without conditions in the dialect of Rust's regex crates. It needs no escapes in Lark."""
    return _cached_text(node) if node.size in _CACHED else _text(node)


_CACHED: Final = range(32, 2048)
"""The sizes of nodes whose text is kept: smaller ones are written faster than found, larger ones are rarely shared."""


def _text(node: Node) -> str:
    if isinstance(node, Chars):
        return _class_text(node.set)
    if isinstance(node, Seq):
        return "".join(_group_text(part) if _needs_group(part) else to_regex(part) for part in node.parts)
    if isinstance(node, Alt):
        named = [option for option in node.options if option != EMPTY]
        text = "|".join(map(to_regex, named))
        return f"(?:{text})?" if len(named) < len(node.options) else text
    if isinstance(node, Repeat):
        return _group_text(node.node) + count_text(node.low, node.high)
    raise TypeError("conditions cannot be written")


# Trees share branches, and most schemas have some of the same strings and numbers.
_cached_text = functools.lru_cache(maxsize=1024)(_text)


def _needs_group(part: Node) -> bool:
    """Whether a part of a sequence is written as a group. Options with the empty text are a group already."""
    return isinstance(part, Alt) and EMPTY not in part.options


def _group_text(node: Node) -> str:
    text = to_regex(node)
    return text if isinstance(node, Chars) else f"(?:{text})"


def count_text(low: int, high: int | None) -> str:
    """How often a part comes, as all dialects of regular expressions write it."""
    if high is None:
        return "*" if low == 0 else "+" if low == 1 else f"{{{low},}}"
    if (low, high) == (0, 1):
        return "?"
    return f"{{{low}}}" if low == high else f"{{{low},{high}}}"


@functools.lru_cache(maxsize=4096)
def _class_text(characters: CharSet) -> str:
    if not characters:
        return "[a&&b]"
    if (code := charset.single(characters)) is not None:
        return _char_text(code)
    return bracketed(characters, _char_text) if characters != charset.ALL else "(?s:.)"


def bracketed(characters: CharSet, char_text: Callable[[int], str]) -> str:
    """A set as a class in brackets: by its ranges, or by those of its complement if these are fewer.

    Args:
        characters: the set.
        char_text: writes one character of a class.
    """
    outside = charset.complement(characters)
    negated = len(outside) < len(characters)
    ranges = outside if negated else characters
    inside = "".join(char_text(low) if low == high else f"{char_text(low)}-{char_text(high)}" for low, high in ranges)
    return f"[{'^' if negated else ''}{inside}]"


def _char_text(code: int) -> str:
    character = chr(code)
    if character.isascii() and (character.isalnum() or character in " ,:;_\"'=%@!<>`"):
        return character
    return f"\\x{{{code:x}}}"
