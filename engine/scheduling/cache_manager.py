"""The KV cache manager: which sequences run, and which slot and cache blocks each of them holds.

It has no policy: the planner chooses which sequences to admit, grow or preempt.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from draftline.engine.cache_journal import CacheJournal
from draftline.engine.request.sequence import Row, Sequence
from draftline.engine.scheduling.block_pool import BlockPool
from draftline.engine.scheduling.prefix_tree import ROOT, NoPrefixTree, PrefixTree
from draftline.engine.scheduling.queue import PriorityQueue

_PROTECTED_SHARE = 0.8
"""Share of all blocks that may be kept because they were reused (docs/bench.md, eviction)."""


class CacheManager:
    """Slots and cache blocks, and the sequences that hold them.

    Attributes:
        pool: the cache blocks.
        block_size: tokens per block.
        journal: the changes of the prefix tree.
        running: the sequences that hold a slot, in queue order.
        preemptions: how often a running sequence was preempted.
        prefix_hit_tokens: prompt tokens found in the cache at first admissions.
        prefix_query_tokens: prompt tokens of first admissions.
    """

    def __init__(self, num_blocks: int, block_size: int, num_slots: int, prefix_caching: bool) -> None:
        """Create a manager with no running sequences and all blocks free.

        Raises:
            ValueError: a size is less than one.
        """
        for name, value in (("num_blocks", num_blocks), ("block_size", block_size), ("num_slots", num_slots)):
            if value < 1:
                raise ValueError(f"{name}: must be at least 1, not {value}")
        self.journal = CacheJournal()
        protected = int(_PROTECTED_SHARE * num_blocks)
        tree = PrefixTree(block_size, self.journal, max_protected=protected) if prefix_caching else NoPrefixTree()
        self.pool = BlockPool(num_blocks, tree)
        self.block_size = block_size
        self.running = PriorityQueue()
        self.preemptions = 0
        self.prefix_hit_tokens = 0
        self.prefix_query_tokens = 0
        self._num_slots = num_slots
        self._free_slots = list(range(num_slots))
        self._first_changed: dict[Sequence, int] = {}  # the device lacks the block table entries from this index on

    @property
    def has_free_slot(self) -> bool:
        """Whether one more sequence could run."""
        return bool(self._free_slots)

    def blocks_for(self, tokens: int) -> int:
        """How many blocks ``tokens`` tokens need."""
        return -(-tokens // self.block_size)

    def match_prefix(self, sequence: Sequence) -> list[int]:
        """Find the cached blocks that a waiting sequence begins with, and hold them, so that they are not evicted.

        At least the sequence's last token is left to compute, because its logits give the next token. A prompt whose
        log-probabilities are still to be computed is left whole.
        """
        # The prompt's log-probabilities are returned before the first output token, and not again.
        if sequence.sampling.prompt_logprobs is not None and not sequence.output_len:
            return []

        # The path is held before new blocks are allocated, since that evicts cached blocks.
        path = self.pool.match(sequence.tokens, self.pool.shareable(len(sequence.tokens) - 1))
        self.pool.acquire(path)
        return path

    def admit(self, sequence: Sequence, prefix: list[int]) -> int:
        """Give a waiting sequence the lowest free slot, and blocks for all its known tokens.

        Args:
            sequence: a sequence without a slot and blocks.
            prefix: the blocks that `match_prefix` found for it.

        Returns:
            The slot.
        """
        # The prefix is computed and registered already. New blocks hold the remaining tokens.
        known = len(sequence.tokens)
        sequence.blocks = prefix + self.pool.allocate(self.blocks_for(known) - len(prefix))
        sequence.registered = len(prefix)
        sequence.computed = len(prefix) * self.block_size

        # A re-admission mostly hits the sequence's own blocks, so only the first one counts for the hit rate.
        if not sequence.preemptions:
            sequence.cached_prompt = sequence.computed
            self.prefix_hit_tokens += sequence.computed
            self.prefix_query_tokens += known

        # The whole block table is new to the device.
        slot = heappop(self._free_slots)
        sequence.slot = slot
        self.running.add(sequence)
        self._first_changed[sequence] = 0
        return slot

    def grow(self, sequence: Sequence, blocks: int) -> None:
        """Give a running sequence ``blocks`` more blocks."""
        self._mark_changed(sequence, len(sequence.blocks))
        sequence.blocks += self.pool.allocate(blocks)

    def release(self, sequence: Sequence) -> None:
        """Free the slot and blocks of a running sequence. Its full computed blocks stay in the prefix tree."""
        assert sequence.slot is not None, f"{sequence.name} does not run"
        self.running.remove(sequence)
        heappush(self._free_slots, sequence.slot)
        sequence.slot = None
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        self._first_changed.pop(sequence, None)

    def preempt(self, sequence: Sequence) -> None:
        """Release a running sequence that has not finished; it must recompute what the prefix tree no longer has."""
        self.release(sequence)
        sequence.computed = sequence.registered = 0
        sequence.preemptions += 1
        self.preemptions += 1

    def register(self, sequence: Sequence, computed: int) -> None:
        """Add the full blocks of a running sequence's first ``computed`` tokens to the prefix tree.

        Where the tree has a block with the same tokens already, the sequence continues with it and frees its own.
        """
        size, blocks = self.block_size, sequence.blocks
        for index in range(sequence.registered, self.pool.shareable(computed)):
            # A block's key is its parent and its tokens. The parent is registered already, by this loop or before.
            parent = blocks[index - 1] if index else ROOT
            own = blocks[index]
            tokens = tuple(sequence.tokens[index * size : (index + 1) * size])
            blocks[index] = self.pool.register(parent, tokens, own)

            # Another sequence computed the same prefix: both have its block from now on.
            if blocks[index] != own:
                self._mark_changed(sequence, index)
        sequence.registered = computed // size

    def take_new_blocks(self, rows: Iterable[Row]) -> tuple[tuple[int, int, int], ...]:
        """Return (slot, index, block) for each block table entry of the rows that is new to the device.

        Each entry is returned once: the caller must bring it to the device.
        """
        if not self._first_changed:
            return ()  # the common case: most decoding steps change no block table
        return tuple(
            (row.slot, index, block)
            for row in rows
            if (first := self._first_changed.pop(row.sequence, None)) is not None
            for index, block in enumerate(row.sequence.blocks[first:], first)
        )

    def check(self) -> None:
        """Assert all invariants, between steps."""
        size = self.block_size
        slots = [sequence.slot for sequence in self.running if sequence.slot is not None]
        assert len(slots) == len(self.running), "a sequence runs without a slot"
        assert sorted([*slots, *self._free_slots]) == list(range(self._num_slots)), "a slot is lost, or held twice"
        for sequence in self.running:
            name = sequence.name
            assert not sequence.finished, f"{name} runs though it has finished"
            assert 0 <= sequence.computed <= sequence.known <= sequence.max_len, f"{name} has impossible lengths"
            assert sequence.in_flight or not sequence.unread, f"{name} waits for a token that no step decides"
            assert sequence.computed <= len(sequence.blocks) * size, f"{name} has computed tokens outside its blocks"
            full = sequence.computed // size
            assert sequence.registered <= full, f"{name} has registered blocks that are not full"
            assert sequence.in_flight or sequence.registered == full, f"{name} has not registered all its full blocks"
            self.pool.check_path(sequence.blocks[: sequence.registered], sequence.tokens)
            own = sequence.blocks[sequence.registered :]
            assert all(self.pool.references(block) == 1 for block in own), f"{name} would write to a shared block"
        assert self._first_changed.keys() <= set(self.running), "a sequence without a slot has new block table entries"
        self.pool.check(sequence.blocks for sequence in self.running)

    def _mark_changed(self, sequence: Sequence, index: int) -> None:
        """Note that the device lacks the sequence's block table entries from ``index`` on."""
        self._first_changed[sequence] = min(index, self._first_changed.get(sequence, index))
