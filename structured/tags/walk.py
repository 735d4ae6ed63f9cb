"""``TagWalk``: finds the tags of an output while its text comes.

It follows the form that the output was constrained by, so it finds the tags that the constraint meant, not what looks
like one. The text is known to match: inside JSON only brackets and quotes are counted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from typing_extensions import override

from draftline.structured.grammar.scan import GrammarScan
from draftline.structured.language import Form, Leaf
from draftline.structured.tags.form import REASONING, leaves, size
from draftline.structured.tags.json_scan import JsonScan
from draftline.structured.tags.nfa import Positions, TagEnd
from draftline.structured.tags.nfa_builder import NfaBuilder
from draftline.structured.tags.span import TagSpan

_MAX_STATES = 1 << 20
_MAX_KNOWN = 20_000
_MAX_PIECES = 4096
"""Pieces of text that a state remembers. Texts come as tokens, of which few follow a state."""


_POSITION_BYTES = 280
"""Memory of a position of the automaton, or of a character of a trigger or mark: measured with forms of all kinds."""

_Thread = tuple[int, JsonScan | GrammarScan | None]
"""A position of the automaton, and the position inside a leaf if it is a leaf's."""


class _SkeletonBuilder(NfaBuilder):
    """Builds the automaton of a form without the insides of its leaves: each is one position, which has another one inside.

    Attributes:
        leaves: for each leaf's position, what begins a position inside it, and the position behind it.
    """

    def __init__(self) -> None:
        super().__init__(_MAX_STATES)
        self.leaves: dict[int, tuple[Callable[[], JsonScan | GrammarScan], int]] = {}

    @override
    def _leaf(self, leaf: Leaf, start: int) -> int:
        grammar = leaf.language.grammar
        begin = JsonScan if leaf.is_json else partial(GrammarScan, grammar)
        position = self._after(start)
        self._rows[position] = {}  # so that it counts as one that moves on
        end = self._position()
        self.leaves[position] = begin, end
        if begin().complete:
            self._empty[start].append(end)
        return end


class _Node:
    """A state of a text's reading: its threads, the tags that they are inside of, and the moves that are known.

    It lasts, so that others can use it, unless a thread changes itself or would take much memory.
    """

    __slots__ = ("inside", "lasts", "moves", "pieces", "surely", "threads")

    def __init__(self, threads: tuple[_Thread, ...], inside: list[frozenset[int]], *, lasts: bool) -> None:
        self.threads = threads
        self.inside = frozenset[int]().union(*inside)
        self.surely = frozenset[int]() if not inside else inside[0].intersection(*inside)
        self.lasts = lasts
        self.moves: dict[int, tuple[_Node, tuple[TagEnd, ...]]] = {}
        # The states behind pieces of text in which no tag begins or ends; None behind others.
        self.pieces: dict[str, _Node | None] = {}


class TagReader:
    """Reads the tags of all outputs of one constraint. Any thread may use it: what it remembers is only ever added anew.

    Attributes:
        tags: the tags of the form.
        has_reasoning: whether reasoning is one of them.
        nbytes: its approximate size in memory, without what it remembers of outputs.
    """

    def __init__(self, form: Form) -> None:
        """Build its automaton. It takes no time for what is inside the leaves."""
        builder = _SkeletonBuilder()
        self._nfa = builder.build(form)
        self._leaves = builder.leaves
        self.tags = self._nfa.tags
        self.has_reasoning = any(tag.name == REASONING for tag in self.tags)
        texts = sum(len(leaf.language.regex or "") + len(leaf.language.grammar) for leaf in leaves(form))
        self.nbytes = _POSITION_BYTES * size(form) + texts
        self._known: dict[tuple[_Thread, ...], _Node] = {}

    def begin(self) -> TagWalk:
        """The walk of a new output."""
        return TagWalk(self, self._node(self._nfa.start, ()))

    def step(self, node: _Node, byte: int) -> tuple[_Node, tuple[TagEnd, ...]]:
        """The state after a byte, and the tags that end with it."""
        move = node.moves.get(byte)
        if move is not None:
            return move
        nfa = self._nfa
        reached = nfa.reached([position for position, inner in node.threads if inner is None], byte)
        going: list[_Thread] = []
        for position, inner in node.threads:
            after = None if inner is None else inner.step(byte)
            if after is not None:
                going.append((position, after))
                if after.complete:
                    reached.append(self._leaves[position][1])
        closes = nfa.closes(reached)
        closed = {close.tag for close in closes}
        kept = tuple(thread for thread in going if closed.isdisjoint(nfa.inside[thread[0]]))
        move = self._node(nfa.arrive(reached), kept), closes
        if node.lasts and move[0].lasts:
            node.moves[byte] = move
        return move

    def behind(self, node: _Node, piece: str) -> _Node | None:
        """The state behind a piece of text in which no tag begins or ends; None if one may, or if the state does not last."""
        pieces = node.pieces
        after = pieces.get(piece, node)
        if after is not node or piece in pieces:  # a state can lead to itself
            return after
        if not node.lasts:
            return None
        for byte in piece.encode():
            assert after is not None
            before = after
            after, closes = self.step(before, byte)
            if closes or not after.lasts or after.inside != before.inside or after.surely != before.surely:
                after = None
                break
        if len(pieces) >= _MAX_PIECES:
            pieces.clear()
        pieces[piece] = after
        return after

    def _node(self, positions: Positions, kept: tuple[_Thread, ...]) -> _Node:
        """The state at these positions, and at the ``kept`` ones inside leaves."""
        leaves = self._leaves
        begun = [(position, leaves[position][0]() if position in leaves else None) for position in positions]
        threads = tuple(dict.fromkeys((*kept, *begun)))
        node = self._known.get(threads)
        if node is None:
            inside = [frozenset(self._nfa.inside[position]) for position, _ in threads]
            node = _Node(threads, inside, lasts=all(inner is None or inner.lasts for _, inner in threads))
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            if node.lasts:
                self._known[threads] = node
        return node


class TagWalk:
    """The tags of one output so far.

    Attributes:
        spans: the tags that have ended, in the order of their ends.
        begun: for each tag that may be open, by its index in `TagReader.tags`: where its content starts, in characters.
            Where two readings are possible, both are here; the one that turns out wrong is dropped.
    """

    def __init__(self, reader: TagReader, start: _Node) -> None:
        """At the beginning of a text."""
        self._reader = reader
        self._node = start
        self._length = 0
        self.spans: list[TagSpan] = []
        self.begun: dict[int, int] = dict.fromkeys(start.inside, 0)

    @property
    def answer_start(self) -> int:
        """Where the text behind the reasoning begins, in characters; the end of the text so far if that has not ended."""
        ends = (span.end for span in self.spans if span.name == REASONING)
        return next(ends, self._length if self._reader.has_reasoning else 0)

    def open(self, *, in_every_reading: bool) -> dict[str, int]:
        """The tags that are open, by name, each with where its content starts, in characters."""
        tags = self._node.surely if in_every_reading else self._node.inside
        return {self._reader.tags[tag].name: self.begun[tag] for tag in tags}

    def feed_plain(self, piece: str) -> bool:
        """Read more of the text if surely no tag begins or ends in it; else read nothing.

        Returns:
            Whether it was read. Then `open` is the same at each of its characters.
        """
        node = self._reader.behind(self._node, piece)
        if node is None:
            return False
        self._node = node
        self._length += len(piece)
        return True

    def feed(self, text: str) -> None:
        """Read more of the text."""
        node, step = self._node, self._reader.step
        for byte in text.encode():
            if byte & 0xC0 != 0x80:
                self._length += 1
            before = node
            node, closes = step(node, byte)
            if closes or node.inside != before.inside:
                self._turn(closes, node.inside)
        self._node = node

    def _turn(self, closes: tuple[TagEnd, ...], inside: frozenset[int]) -> None:
        for close in closes:
            start = self.begun.pop(close.tag, None)
            if start is not None:
                tag = self._reader.tags[close.tag]
                end = self._length
                self.spans.append(TagSpan(tag.name, tag.begin, start - len(tag.begin), start, end - close.length, end))
        self.begun = {tag: self.begun.get(tag, self._length) for tag in sorted(inside)}
