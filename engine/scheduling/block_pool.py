"""The block pool: which cache blocks are free, which are cached, and how many sequences hold each of the others.

Every block is exactly one of three:

- *free*: no sequence holds it, and its contents mean nothing.
- *cached*: no sequence holds it, but the prefix tree knows its tokens. It is evicted when free blocks run out.
- *held*: by as many sequences as it has references.

The pool counts references. It knows neither sequences nor tensors; the prefix tree knows the tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from draftline.engine.scheduling.prefix_tree import PrefixIndex


class BlockPool:
    """Reference-counted cache blocks 0 to ``num_blocks - 1``, with a prefix tree over them."""

    def __init__(self, num_blocks: int, prefixes: PrefixIndex) -> None:
        """Create a pool of free blocks.

        Args:
            num_blocks: the number of blocks.
            prefixes: an empty prefix tree that only this pool uses.

        Raises:
            ValueError: ``num_blocks`` is less than one.
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
        """The number of free blocks."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """The number of cached blocks."""
        return self._prefixes.idle_count

    @property
    def available(self) -> int:
        """The number of blocks that can be allocated: the free and the cached ones."""
        return len(self._free) + self._prefixes.idle_count

    def references(self, block: int) -> int:
        """How many sequences hold ``block``."""
        return self._references[block]

    def generation(self, block: int) -> int:
        """How often ``block`` has been allocated. When this changes, the block's contents are no longer valid."""
        return self._generations[block]

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` blocks, each held once. Cached blocks are evicted when free ones run out.

        Raises:
            RuntimeError: fewer are available. Then none is taken.
        """
        if count > self.available:
            raise RuntimeError(f"{count} cache blocks are needed but only {self.available} are available")
        blocks = [self._free.pop() if self._free else self._prefixes.evict() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
            self._generations[block] += 1
        return blocks

    def shareable(self, length: int) -> int:
        """The maximum number of cached blocks that a prefix of ``length`` tokens could match."""
        return self._prefixes.shareable(length)

    def match(self, tokens: Sequence[int], max_blocks: int) -> list[int]:
        """Find up to ``max_blocks`` blocks of the longest cached prefix of ``tokens``. This does not hold them."""
        return self._prefixes.match(tokens, max_blocks)

    def acquire(self, blocks: Iterable[int]) -> None:
        """Add one reference to each of some known blocks.

        The new holder must hold each block's whole path to the root.
        """
        for block in blocks:
            self._prefixes.hold(block)
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Remove one reference from each of ``blocks``, which are in sequence order.

        A block without references becomes cached if the prefix tree knows it, and free otherwise. The tail goes first,
        so that a cached block is never evicted before those that continue it.

        Raises:
            RuntimeError: no sequence holds a block.
        """
        for block in reversed(blocks):
            if self._references[block] == 0:
                raise RuntimeError(f"cache block {block} is released but no sequence holds it")
            self._references[block] -= 1
            if self._references[block] == 0 and not self._prefixes.idle(block):
                self._free.append(block)

    def register(self, parent: int, tokens: tuple[int, ...], block: int) -> int:
        """Add a full, computed block to the prefix tree, under the known block ``parent`` (or ``ROOT``).

        If the tree has another block with the same tokens under the same parent, the caller's reference moves to that
        block, and ``block`` is free. So paths in the tree stay connected.

        Returns:
            The block to hold from now on.
        """
        known = self._prefixes.insert(parent, tokens, block)
        if known != block:
            self.acquire((known,))
            self.release((block,))
        return known

    def forget_cached(self) -> None:
        """Free all cached blocks. Held blocks stay in the prefix tree."""
        while self._prefixes.idle_count:
            self._free.append(self._prefixes.evict())

    def check(self, holders: Iterable[Sequence[int]]) -> None:
        """Assert the invariants, given the blocks of every holder."""
        held = Counter(block for blocks in holders for block in blocks)
        assert all(0 <= block < self.num_blocks for block in held), "a holder has a block that does not exist"
        counts = Counter({block: references for block, references in enumerate(self._references) if references})
        for block in held.keys() | counts.keys():
            references = counts[block]
            assert references == held[block], f"block {block} has {held[block]} holders but {references} references"
        free = set(self._free)
        assert len(free) == len(self._free), "a block is free twice"
        cached = self._prefixes.check(self._references)
        assert not free & cached, f"blocks {free & cached} are free and cached"
        assert not free & held.keys(), f"blocks {free & held.keys()} are free and held"
        assert len(free) + len(cached) + len(held) == self.num_blocks, "a block is lost"

    def check_path(self, blocks: Sequence[int], tokens: Sequence[int]) -> None:
        """Assert that the prefix tree, if there is one, has ``blocks`` as the path of ``tokens``."""
        self._prefixes.check_path(blocks, tokens)
