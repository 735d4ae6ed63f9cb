"""``UniqueMatcher``: a matcher whose arrays hold different items.

A token is masked if it ends an item that has been there, or if every text from there on would. Nothing has to be looked up
while the text differs from all items so far, or while something is still to come that can make it differ. Otherwise the
inner matcher is asked how the text may go on: from `{"a":1` to `}`, or from `{"a":1` to `{"a":10`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from draftline.structured.matcher import Matcher, Words, WrappedMatcher
from draftline.structured.unique.cursor import Cursor, Position, ReasoningPosition
from draftline.structured.unique.paths import UniquePaths
from draftline.structured.unique.rivals import Rivals, by_next_byte, differs_in_any_case, rivals_at, will_differ
from draftline.structured.unique.tokens import ItemTokens
from draftline.structured.unique.values import spelled_alike

MAX_WORK: Final = 6_000
"""The most comparisons of a text with an item for one mask, so that other outputs do not wait. Then texts count as repeating
whose end is unknown, unless no other is left."""

_QUESTION: Final = 30
"""What a mask of the inner matcher counts, in comparisons."""

_WHITE: Final = b" \t\n\r"

_Doubt = tuple[int, Cursor | None, tuple[Rivals, ...]]
"""A token, the position behind it, and its rivals there."""


class _Place(NamedTuple):
    """A position of an output.

    Attributes:
        cursor: the position in the document.
        rivals: what the open items and names may still turn out to repeat.
        way: tokens that may follow, behind which they do not, if a search has found them.
    """

    cursor: Position
    rivals: tuple[Rivals, ...] = ()
    way: tuple[int, ...] = ()


class UniqueMatcher(WrappedMatcher):
    """A matcher of JSON documents, without those texts in which an array has an item twice."""

    def __init__(self, inner: Matcher, paths: UniquePaths, tokens: ItemTokens, start: Position) -> None:
        """Both at the beginning of a text.

        Args:
            inner: has other values for an item than those before it, wherever it asks for one.
            paths: where items have to differ.
            tokens: of the matcher's vocabulary.
            start: the position of the empty text.
        """
        super().__init__(inner)
        self._paths = paths
        self._tokens = tokens
        self._places = [_Place(start)]

    @override
    def correct_mask(self, words: Words) -> None:
        """Remove the tokens from the inner matcher's mask behind which an item would be there twice."""
        cursor, rivals, way = self._places[-1]
        search = _Search(self.inner, self._paths, self._tokens, MAX_WORK)
        wrong: list[_Doubt] = []
        for one in self._doubtful(cursor, rivals, _Allowed(words)):
            token, after, left = one
            if token not in way[:1] and (after is None or not search.goes_on_behind(token, after, left)):
                wrong.append(one)
        if wrong:
            bits = words.view(np.uint32)
            tokens = np.array([token for token, _, _ in wrong], np.int64)
            np.bitwise_and.at(bits, tokens >> 5, ~(np.uint32(1) << (tokens & 31).astype(np.uint32)))
            if not words.any():
                # The work has ended before any text was found: search on for one.
                search = _Search(self.inner, self._paths, self._tokens, None)
                ways = (token for token, after, left in wrong if after and search.goes_on_behind(token, after, left))
                token = next(ways)
                bits[token >> 5] = np.uint32(1) << np.uint32(token & 31)

    def _doubtful(self, cursor: Position, rivals: tuple[Rivals, ...], allowed: _Allowed) -> Iterator[_Doubt]:
        """The allowed tokens that may be wrong, each with the position behind it and its rivals.

        The position is None if the token ends a repeating item.
        """
        some = self._ending(cursor)
        for token in allowed.among(some):
            after = _after(cursor, self._tokens.texts[token], self._paths)
            if after is None:
                yield token, None, ()
            elif isinstance(after, Cursor) and not differs_in_any_case(after, self._paths):
                left = rivals_at(after, rivals, self._paths)
                if left:
                    yield token, after, left
        if not rivals or not isinstance(cursor, Cursor):
            return
        taken = set(some.tolist())
        below = allowed.below(self._tokens)
        yield from (one for one in self._along(0, cursor, rivals, allowed, below) if one[0] not in taken)

    def _ending(self, cursor: Position) -> npt.NDArray[np.int64]:
        """The tokens that may end two names or two items."""
        tokens = self._tokens
        if isinstance(cursor, ReasoningPosition) and not cursor.required and 0 < cursor.begun < len(cursor.begin):
            return tokens.order  # these bytes may be the document's own
        if not cursor.comparing or not isinstance(cursor, Cursor):
            return tokens.opening
        return tokens.commas if cursor.text < 0 else tokens.quoted

    def _along(
        self, node: int, cursor: Cursor, rivals: tuple[Rivals, ...], allowed: _Allowed, below: npt.NDArray[np.bool_]
    ) -> Iterator[_Doubt]:
        """The allowed tokens behind which a text may still repeat an item or a name, as a walk through the tree of tokens.

        Only nodes are visited that have allowed tokens ``below``.
        """
        tokens = self._tokens
        expected = by_next_byte(cursor, rivals)
        for child in range(tokens.first[node], tokens.first[node + 1]):
            before = rivals if expected is None else expected.get(tokens.byte[child], ())
            if not before or not below[child]:
                continue
            after = cursor.step(tokens.byte[child], self._paths)
            if after is None:
                yield from ((token, None, ()) for token in self._below(child) if allowed.has(token))
                continue
            blank = cursor.text < 0 and tokens.byte[child] in _WHITE
            left = before if blank else rivals_at(after, before, self._paths)
            if left:
                yield from ((token, after, left) for token in tokens.at.get(child, ()) if allowed.has(token))
                yield from self._along(child, after, left, allowed, below)

    def _below(self, node: int) -> Iterator[int]:
        """The tokens that begin with the text of a node."""
        yield from self._tokens.at.get(node, ())
        for child in range(self._tokens.first[node], self._tokens.first[node + 1]):
            yield from self._below(child)

    @override
    def advance(self, token: int) -> bool:
        if not 0 <= token < len(self._tokens.texts):
            return False
        cursor, rivals, way = self._places[-1]
        after = _after(cursor, self._tokens.texts[token], self._paths)
        if after is None or not self.inner.advance(token):
            return False
        rivals, way = rivals_at(after, rivals, self._paths), way[1:] if token in way[:1] else ()
        if rivals and isinstance(after, Cursor) and not way and not will_differ(after, rivals, self._paths):
            search = _Search(self.inner, self._paths, self._tokens, MAX_WORK)
            found = search.way(after, rivals)
            if found is None and search.has_ended_early and self._is_last(token):
                found = _Search(self.inner, self._paths, self._tokens, None).way(after, rivals)
            if found is None:
                self.inner.rollback(1)
                return False
            way = found
        self._places.append(_Place(after, rivals, way))
        return True

    def _is_last(self, token: int) -> bool:
        """Whether the mask has allowed a token that the inner matcher has just taken, for want of another."""
        self.inner.rollback(1)
        words = np.empty((len(self._tokens.texts) + 31) // 32, np.int32)
        self.fill_mask(words)
        self.inner.advance(token)
        return _Allowed(words).has(token)

    @override
    def rollback(self, count: int) -> None:
        self.inner.rollback(count)
        del self._places[len(self._places) - count :]


def _after(cursor: Position | None, text: bytes, paths: UniquePaths) -> Position | None:
    for byte in text:
        if cursor is None:
            return None
        cursor = cursor.step(byte, paths)
    return cursor


_Key = tuple[bytes, bytes]
"""The items before, and the one that is open, whatever its numbers and white space look like."""


def _key(cursor: Cursor, rivals: tuple[Rivals, ...]) -> _Key:
    begin = min((one.item for one in rivals), default=0)
    return cursor.recorded[:begin], spelled_alike(cursor.recorded[begin:])


class _Search:
    """Looks for texts in which items differ, by questions to the inner matcher."""

    def __init__(self, inner: Matcher, paths: UniquePaths, tokens: ItemTokens, max_work: int | None) -> None:
        self._inner = inner
        self._paths = paths
        self._tokens = tokens
        self._known: dict[_Key, bool] = {}
        self._left = sys.maxsize if max_work is None else max_work

    @property
    def has_ended_early(self) -> bool:
        """Whether there was more work than allowed, so that texts may go on without being found."""
        return self._left < 0

    def goes_on_behind(self, token: int, after: Cursor, rivals: tuple[Rivals, ...]) -> bool:
        """Whether a text goes on behind a token that the inner matcher allows."""
        if will_differ(after, rivals, self._paths):
            return True
        known = self._known.get(_key(after, rivals))
        if known is None and self._inner.advance(token):
            known = self.way(after, rivals) is not None
            self._inner.rollback(1)
        return bool(known)

    def way(self, cursor: Cursor, rivals: tuple[Rivals, ...]) -> tuple[int, ...] | None:
        """Tokens from the inner matcher's position to one where a text goes on, or to a known one; None if there are none.

        Depth first, as deep as a text is long.
        """
        key = _key(cursor, rivals)
        known = self._known.get(key)
        if known is not None:
            return () if known else None
        path = [key]
        taken: list[int] = []
        ways = [self._ways(cursor, rivals)]
        while ways and ways[-1] is not None:
            way = next(ways[-1], None)
            if way is None:
                self._known[path.pop()] = False
                ways.pop()
                if path:
                    self._inner.rollback(1)
                    taken.pop()
                continue
            token, after, left = way
            key = _key(after, left)
            known = self._known.get(key, not left or None)
            if known is None and self._inner.advance(token):
                path.append(key)
                taken.append(token)
                ways.append(self._ways(after, left))
            elif known:
                taken.append(token)
                break
        if path:
            self._inner.rollback(len(path) - 1)
        self._known.update((text, True) for text in path)
        return tuple(taken) if path else None

    def _ways(
        self, cursor: Cursor, rivals: tuple[Rivals, ...]
    ) -> Iterator[tuple[int, Cursor, tuple[Rivals, ...]]] | None:
        """The tokens behind which a text may still repeat an item; None if there is one behind which it does not."""
        self._left -= _QUESTION
        if self.has_ended_early:
            return iter(())
        comparisons = 1 + sum(len(one.values) for one in rivals)
        words = np.empty((len(self._tokens.texts) + 31) // 32, np.int32)
        self._inner.fill_mask(words)
        allowed = _Allowed(words)
        # White space changes no value: wherever it may be, it may also be left out or is the only text.
        blank: list[int] = []
        only_blank = True
        later: list[tuple[int, Cursor, tuple[Rivals, ...]]] = []
        texts: set[bytes] = set()
        for token in allowed.texts(self._tokens).tolist():
            text = self._tokens.texts[token]
            if cursor.text < 0 and text[0] in _WHITE:
                blank.append(token)
                continue
            only_blank = False
            if token in self._tokens.ends or self._goes_through(text, texts):
                continue
            after = _after(cursor, text, self._paths)
            if not isinstance(after, Cursor):
                continue
            left = rivals_at(after, rivals, self._paths)
            if not left or will_differ(after, left, self._paths):
                return None
            texts.add(text)
            later.append((token, after, left))
            self._left -= comparisons
            if self.has_ended_early:
                break
        if only_blank:
            for token in blank:
                after = _after(cursor, self._tokens.texts[token], self._paths)
                if isinstance(after, Cursor):
                    later.append((token, after, rivals_at(after, rivals, self._paths)))
        return iter(later)

    def _goes_through(self, text: bytes, texts: set[bytes]) -> bool:
        """Whether tokens can write ``text`` by way of one of ``texts``."""
        return self._tokens.complete and any(text[:size] in texts for size in range(1, len(text)))


class _Allowed:
    """The tokens of a mask."""

    def __init__(self, words: Words) -> None:
        self._words = words

    def has(self, token: int) -> bool:
        """Whether a token is allowed."""
        return bool(self._words[token >> 5] >> (token & 31) & 1)

    def among(self, tokens: npt.NDArray[np.int64]) -> Iterator[int]:
        """Those of some tokens that are allowed, in their order."""
        return iter(tokens[(self._words[tokens >> 5] >> (tokens & 31) & 1) != 0].tolist())

    def texts(self, tokens: ItemTokens) -> npt.NDArray[np.int64]:
        """Those of all tokens with a text, short ones first."""
        some = np.flatnonzero(self._words)  # few, outside of strings
        bits = np.unpackbits(self._words[some].view(np.uint8).reshape(len(some), 4), axis=1, bitorder="little")
        row, bit = np.nonzero(bits)
        rank = np.sort(tokens.rank[some[row] * 32 + bit])
        texts: npt.NDArray[np.int64] = tokens.order[rank[rank >= 0]]
        return texts

    def below(self, tokens: ItemTokens) -> npt.NDArray[np.bool_]:
        """The nodes of the tree with allowed tokens at or below them: [nodes] bool."""
        found = np.zeros(len(tokens.parent), np.bool_)
        nodes = tokens.node[self.texts(tokens)]
        while len(nodes):
            found[nodes] = True
            nodes = tokens.parent[nodes]
            nodes = nodes[~found[nodes]]
        return found
