"""The prefix tree: which cache blocks hold which tokens, so that a common prefix is computed once.

A node is a full block of ``block_size`` tokens under the block before it, so a path from the root spells a prefix. Keys
are the parent block and the exact tokens: two prefixes can never be mistaken for each other. The tree also keeps the
order in which idle blocks (those that no sequence holds) are evicted. It does not count references: `BlockPool` does,
and tells the tree when a block becomes idle or held.

Eviction is segmented LRU (Karedla, Love and Wherry 1994): idle blocks that no second sequence has used go first, then
those that were reused, each kind by the time of its last use. A prefix that many share so outlives prompts that come
once. If there are too many reused blocks, the oldest become ordinary ones again, so that no block stays forever.

It takes constant time, without looking for leaves. A sequence that holds a block holds the whole path to it, and
releases the path from its tail. So a block always becomes idle after its children, and is reused if one of its children
is. Both kinds are kept in the order of becoming idle, every child before its parent: the first is a leaf.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from typing_extensions import override

from draftline.engine.cache_journal import BlockKey, CacheJournal

ROOT = -1
"""The parent of every sequence's first block."""


class PrefixIndex(Protocol):
    """The prefix tree as the block pool sees it."""

    @property
    def idle_count(self) -> int:
        """The number of idle blocks."""
        ...

    def shareable(self, length: int) -> int:
        """The maximum number of blocks on a path of ``length`` tokens."""
        ...

    def match(self, tokens: Sequence[int], max_blocks: int) -> list[int]:
        """Find the longest known path that ``tokens`` begins with, of at most ``max_blocks`` blocks."""
        ...

    def insert(self, parent: int, tokens: tuple[int, ...], block: int) -> int:
        """Add ``block`` as ``tokens`` under ``parent``, unless an older block has this key.

        Returns:
            The block that has the key.
        """
        ...

    def hold(self, block: int) -> None:
        """Note that a further sequence holds ``block``, which is known. It holds the whole path to it as well."""
        ...

    def idle(self, block: int) -> bool:
        """Note that no sequence holds ``block`` any more.

        Returns:
            Whether the tree knows the block, and so keeps it.
        """
        ...

    def evict(self) -> int:
        """Remove an idle leaf, and return it. There must be an idle block."""
        ...

    def check(self, references: Sequence[int]) -> set[int]:
        """Assert the invariants, given every block's reference count.

        Returns:
            The idle blocks.
        """
        ...

    def check_path(self, blocks: Sequence[int], tokens: Sequence[int]) -> None:
        """Assert that ``blocks`` are the path of ``tokens`` from the root."""
        ...


class PrefixTree(PrefixIndex):
    """A prefix tree over blocks of ``block_size`` tokens."""

    def __init__(
        self, block_size: int, journal: CacheJournal | None = None, *, max_protected: int | None = None
    ) -> None:
        """Create an empty tree, which records its changes in ``journal``.

        ``max_protected`` is the most idle blocks that go last because they were reused; None for no limit. With 0,
        eviction is plain LRU.
        """
        self._block_size = block_size
        self._max_protected = max_protected
        self._journal = journal or CacheJournal()
        self._keys = self._journal.keys  # of the known blocks
        self._blocks: dict[BlockKey, int] = {}
        self._reused: set[int] = set()
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._protected: OrderedDict[int, None] = OrderedDict()  # idle as well, and evicted after all of the others

    @property
    @override
    def idle_count(self) -> int:
        return len(self._idle) + len(self._protected)

    @override
    def shareable(self, length: int) -> int:
        return length // self._block_size

    @override
    def match(self, tokens: Sequence[int], max_blocks: int) -> list[int]:
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

    @override
    def insert(self, parent: int, tokens: tuple[int, ...], block: int) -> int:
        key = (parent, tokens)
        known = self._blocks.setdefault(key, block)
        if known == block:
            self._journal.stored(block, key)
        return known

    @override
    def hold(self, block: int) -> None:
        self._reused.add(block)
        self._idle.pop(block, None)
        self._protected.pop(block, None)

    @override
    def idle(self, block: int) -> bool:
        if block not in self._keys:
            return False
        if block not in self._reused:
            self._idle[block] = None
            return True
        self._protected[block] = None
        if self._max_protected is not None and len(self._protected) > self._max_protected:
            oldest, _ = self._protected.popitem(last=False)
            self._reused.discard(oldest)
            self._idle[oldest] = None
        return True

    @override
    def evict(self) -> int:
        block, _ = (self._idle or self._protected).popitem(last=False)
        self._reused.discard(block)
        del self._blocks[self._journal.removed(block)]
        return block

    @override
    def check(self, references: Sequence[int]) -> set[int]:
        assert len(self._keys) == len(self._blocks), "a block is known under two keys"
        for block, key in self._keys.items():
            assert self._blocks.get(key) == block, f"block {block} and its key disagree"
            assert len(key[1]) == self._block_size, f"block {block} is known with {len(key[1])} tokens"
            is_idle = (block in self._idle) + (block in self._protected)
            assert is_idle == (references[block] == 0), f"block {block} is idle though held, or twice, or neither"
        eviction_index = {block: index for index, block in enumerate((*self._idle, *self._protected))}
        assert self._reused <= self._keys.keys(), "a block is reused but not known"
        for block, (parent, _) in self._keys.items():
            if parent == ROOT:
                continue
            assert parent in self._keys, f"block {block} is known but its parent {parent} is not"
            if block not in eviction_index:
                assert parent not in eviction_index, f"block {block} is held but its parent {parent} is idle"
            elif parent in eviction_index:
                assert eviction_index[block] < eviction_index[parent], (
                    f"block {parent} would be evicted before its child {block}"
                )
        assert eviction_index.keys() <= self._keys.keys(), "an idle block is not known"
        return set(eviction_index)

    @override
    def check_path(self, blocks: Sequence[int], tokens: Sequence[int]) -> None:
        assert self.match(tokens, len(blocks)) == list(blocks), f"blocks {list(blocks)} are not the tokens' path"


class NoPrefixTree(PrefixIndex):
    """The tree of an engine without prefix caching.

    It knows no block, so no prefix matches and no block becomes idle.
    """

    idle_count = 0

    @override
    def shareable(self, length: int) -> int:
        return 0

    @override
    def match(self, tokens: Sequence[int], max_blocks: int) -> list[int]:
        return []

    @override
    def insert(self, parent: int, tokens: tuple[int, ...], block: int) -> int:
        return block

    @override
    def hold(self, block: int) -> None:
        raise AssertionError(f"block {block} cannot be idle without a prefix tree")

    @override
    def idle(self, block: int) -> bool:
        return False

    @override
    def evict(self) -> int:
        raise AssertionError("nothing to evict without a prefix tree")

    @override
    def check(self, references: Sequence[int]) -> set[int]:
        return set()

    @override
    def check_path(self, blocks: Sequence[int], tokens: Sequence[int]) -> None:
        pass
