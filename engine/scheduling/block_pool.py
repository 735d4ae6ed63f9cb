"""The block pool: which cache blocks are free, which are cached, and how many sequences hold each of the others.

Every block is exactly one of *free* (nobody holds it and its contents mean nothing), *cached* (nobody holds it, but the
prefix tree knows its tokens; given up when free ones run out) and *held* (by as many holders as it has references). The
pool counts; it knows neither sequences nor tensors, and what a block holds is the prefix tree's business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from draftline.engine.scheduling.prefix_tree import PrefixIndex


class BlockPool:
    """Reference-counted cache blocks 0 to ``num_blocks - 1``, with a prefix tree over them."""

    def __init__(self, num_blocks: int, prefixes: PrefixIndex) -> None:
        """All blocks are free; ``prefixes`` is empty and used by this pool alone.

        Raises:
            ValueError: there is no block.
        """
        if num_blocks < 1:
            raise ValueError(f"num_blocks: the cache needs at least one block, not {num_blocks}")
        self.num_blocks = num_blocks
        self._prefixes = prefixes
        self._free = list(range(num_blocks - 1, -1, -1))
        self._references = [0] * num_blocks
        self._generations = [0] * num_blocks

    @property
    def free(self) -> int:
        """Blocks whose contents mean nothing."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Blocks that nobody holds but the prefix tree knows."""
        return self._prefixes.idle_count

    @property
    def available(self) -> int:
        """Blocks that can be allocated: free and cached."""
        return len(self._free) + self._prefixes.idle_count

    def references(self, block: int) -> int:
        """How many hold ``block``."""
        return self._references[block]

    def generation(self, block: int) -> int:
        """How often ``block`` has been allocated: what was known of its contents is void when this changes."""
        return self._generations[block]

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` blocks, each held once; cached ones are given up when free ones run out.

        Raises:
            RuntimeError: fewer are available; nothing is taken.
        """
        if count > self.available:
            raise RuntimeError(f"{count} cache blocks are needed but only {self.available} are available")
        blocks = [self._free.pop() if self._free else self._prefixes.evict() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
            self._generations[block] += 1
        return blocks

    def shareable(self, length: int) -> int:
        """How many cached blocks a beginning of ``length`` tokens could match at most."""
        return self._prefixes.shareable(length)

    def match(self, tokens: Sequence[int], max_blocks: int) -> list[int]:
        """The blocks, at most ``max_blocks``, of the longest cached beginning of ``tokens``. They are not held yet."""
        return self._prefixes.match(tokens, max_blocks)

    def acquire(self, blocks: Iterable[int]) -> None:
        """Hold known blocks once more each; a block's whole path to the root must be held by the same holder."""
        for block in blocks:
            if self._references[block] == 0:
                self._prefixes.hold(block)
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Give up one reference to each of ``blocks``, which are in sequence order.

        Known blocks without holders stay cached, the others become free. The tail goes first, so that a cached block
        is never evicted before those that continue it.

        Raises:
            RuntimeError: nobody holds a block.
        """
        for block in reversed(blocks):
            if self._references[block] == 0:
                raise RuntimeError(f"cache block {block} is released though nobody holds it")
            self._references[block] -= 1
            if self._references[block] == 0 and not self._prefixes.idle(block):
                self._free.append(block)

    def register(self, parent: int, tokens: tuple[int, ...], block: int) -> int:
        """Make a full, computed block known to the prefix tree, under the known block ``parent`` (or ``ROOT``).

        Returns the block to hold from now on: where another block has the same tokens under the same parent, the
        caller's reference moves to that one, and ``block`` is free. So paths in the tree stay connected.
        """
        known = self._prefixes.insert(parent, tokens, block)
        if known != block:
            self.acquire((known,))
            self.release((block,))
        return known

    def forget_cached(self) -> None:
        """Free all cached blocks. Held ones stay known."""
        while self._prefixes.idle_count:
            self._free.append(self._prefixes.evict())

    def check(self, holders: Iterable[Sequence[int]]) -> None:
        """Assert the invariants, given the blocks of every holder."""
        held = Counter(block for blocks in holders for block in blocks)
        assert all(0 <= block < self.num_blocks for block in held), "a holder has a block that does not exist"
        for block, references in enumerate(self._references):
            assert references == held[block], f"block {block} has {held[block]} holders but {references} references"
        free = set(self._free)
        assert len(free) == len(self._free), "a block is free twice"
        cached = self._prefixes.check(self._references)
        assert not free & cached, f"blocks {free & cached} are free and cached"
        assert not free & held.keys(), f"blocks {free & held.keys()} are free and held"
        assert len(free) + len(cached) + len(held) == self.num_blocks, "a block is lost"

    def check_path(self, blocks: Sequence[int], tokens: Sequence[int]) -> None:
        """Assert that the prefix tree, if there is one, knows ``blocks`` as the path that ``tokens`` spell."""
        self._prefixes.check_path(blocks, tokens)
