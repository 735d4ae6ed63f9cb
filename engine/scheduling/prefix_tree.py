"""The prefix tree: which cache blocks hold which tokens, so that a common beginning is computed once.

A node is a full block of ``block_size`` tokens under the block before it, so a path from the root spells a prefix. Keys
are the parent block and the exact tokens: two prefixes can never be mistaken for each other. The tree also keeps the
order in which idle blocks (those that no sequence holds) are given up. It does not count references: `BlockPool` does,
and tells the tree when a block becomes idle or held.

Eviction takes the least recently used idle leaf, in constant time, without looking for leaves. A sequence that holds a
block holds the whole path to it and gives it back from the tail, so a block always becomes idle after its children did,
and idle blocks kept in that order have every child before its parent: the first is a leaf.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from draftline.engine.cache_journal import CacheJournal

ROOT = -1
"""The parent of every sequence's first block."""


class PrefixIndex(Protocol):
    """What the block pool needs of a prefix tree."""

    @property
    def idle_count(self) -> int:
        """How many blocks it keeps that nobody holds."""
        ...

    def shareable(self, length: int) -> int:
        """How many blocks the path of ``length`` tokens could have."""
        ...

    def match(self, tokens: Sequence[int], max_blocks: int) -> list[int]:
        """The longest known path that ``tokens`` begins with, of at most ``max_blocks`` blocks."""
        ...

    def insert(self, parent: int, tokens: tuple[int, ...], block: int) -> int:
        """Make ``block`` known as ``tokens`` under ``parent``; returns the block that is, which may be an older one."""
        ...

    def hold(self, block: int) -> None:
        """An idle block is held again."""
        ...

    def idle(self, block: int) -> bool:
        """Nobody holds ``block`` any more; returns whether the tree knows it, and so keeps it."""
        ...

    def evict(self) -> int:
        """Forget the least recently used idle leaf, and return it. There must be an idle block."""
        ...

    def check(self, references: Sequence[int]) -> set[int]:
        """Assert the invariants, given every block's reference count; returns the idle blocks."""
        ...

    def check_path(self, blocks: Sequence[int], tokens: Sequence[int]) -> None:
        """Assert that ``blocks`` are, from the root, the path that ``tokens`` spell."""
        ...


class PrefixTree:
    """A prefix tree over blocks of ``block_size`` tokens."""

    def __init__(self, block_size: int, journal: CacheJournal | None = None) -> None:
        """An empty tree, which tells ``journal`` of what it knows."""
        self._block_size = block_size
        self._journal = journal or CacheJournal()
        self._blocks: dict[tuple[int, tuple[int, ...]], int] = {}
        self._keys: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def idle_count(self) -> int:
        """How many blocks it keeps that nobody holds."""
        return len(self._idle)

    def shareable(self, length: int) -> int:
        """How many blocks the path of ``length`` tokens could have."""
        return length // self._block_size

    def match(self, tokens: Sequence[int], max_blocks: int) -> list[int]:
        """The longest known path that ``tokens`` begins with, of at most ``max_blocks`` blocks."""
        size = self._block_size
        path: list[int] = []
        parent = ROOT
        for start in range(0, min(max_blocks, len(tokens) // size) * size, size):
            block = self._blocks.get((parent, tuple(tokens[start : start + size])))
            if block is None:
                break
            path.append(block)
            parent = block
        return path

    def insert(self, parent: int, tokens: tuple[int, ...], block: int) -> int:
        """Make ``block`` known as ``tokens`` under ``parent``; returns the block that is, which may be an older one."""
        key = (parent, tokens)
        known = self._blocks.setdefault(key, block)
        if known == block:
            self._keys[block] = key
            self._journal.stored(block, parent, tokens)
        return known

    def hold(self, block: int) -> None:
        """An idle block is held again."""
        del self._idle[block]

    def idle(self, block: int) -> bool:
        """Nobody holds ``block`` any more; returns whether the tree knows it, and so keeps it."""
        if block not in self._keys:
            return False
        self._idle[block] = None
        return True

    def evict(self) -> int:
        """Forget the least recently used idle leaf, and return it. There must be an idle block."""
        block, _ = self._idle.popitem(last=False)
        del self._blocks[self._keys.pop(block)]
        self._journal.removed(block)
        return block

    def check(self, references: Sequence[int]) -> set[int]:
        """Assert the invariants, given every block's reference count; returns the idle blocks."""
        assert len(self._keys) == len(self._blocks), "a block is known under two keys"
        for block, key in self._keys.items():
            assert self._blocks.get(key) == block, f"block {block} and its key disagree"
            assert len(key[1]) == self._block_size, f"block {block} is known with {len(key[1])} tokens"
            assert (references[block] == 0) == (block in self._idle), f"block {block} is idle though held, or neither"
        place = {block: at for at, block in enumerate(self._idle)}
        for block, (parent, _) in self._keys.items():
            if parent == ROOT:
                continue
            assert parent in self._keys, f"block {block} is known but its parent {parent} is not"
            if block not in place:
                assert parent not in place, f"block {block} is held but its parent {parent} is idle"
            elif parent in place:
                assert place[block] < place[parent], f"block {parent} would be evicted before its child {block}"
        assert place.keys() <= self._keys.keys(), "an idle block is not known"
        return set(place)

    def check_path(self, blocks: Sequence[int], tokens: Sequence[int]) -> None:
        """Assert that ``blocks`` are, from the root, the path that ``tokens`` spell."""
        assert self.match(tokens, len(blocks)) == list(blocks), f"blocks {list(blocks)} are not the tokens' path"


class NoPrefixTree:
    """The tree of an engine without prefix caching: it knows no block, and so matches nothing."""

    idle_count = 0

    def shareable(self, length: int) -> int:
        """No block."""
        return 0

    def match(self, tokens: Sequence[int], max_blocks: int) -> list[int]:
        """No block."""
        return []

    def insert(self, parent: int, tokens: tuple[int, ...], block: int) -> int:
        """``block`` itself, which stays unknown."""
        return block

    def hold(self, block: int) -> None:
        """Never called: no block is idle."""
        raise AssertionError(f"block {block} cannot be idle without a prefix tree")

    def idle(self, block: int) -> bool:
        """False: the block is free."""
        return False

    def evict(self) -> int:
        """Never called: no block is idle."""
        raise AssertionError("nothing to evict without a prefix tree")

    def check(self, references: Sequence[int]) -> set[int]:
        """No block is idle."""
        return set()

    def check_path(self, blocks: Sequence[int], tokens: Sequence[int]) -> None:
        """Nothing to compare with."""
