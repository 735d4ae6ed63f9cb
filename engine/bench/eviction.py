"""Eviction policies of the prefix cache under memory pressure, on the real block pool with traces of the workloads.

A trace is the order in which turns begin and end; a cache of a given size sees it with each policy. Nothing is
computed: the question is how many prompt tokens a policy finds. ``segmented`` is the engine's own tree.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from typing_extensions import override

from draftline.engine.bench.load.workloads import Conversation
from draftline.engine.scheduling.block_pool import BlockPool
from draftline.engine.scheduling.prefix_tree import ROOT, PrefixTree


@dataclass(frozen=True, slots=True)
class Event:
    """A turn of a conversation begins with this prompt, and ends with this answer after it."""

    begins_s: float
    ends_s: float
    prompt: tuple[int, ...]
    answer: tuple[int, ...]


def trace(conversations: Sequence[Conversation], prefill_s: float, decode_s: float, seed: int) -> list[Event]:
    """The turns of conversations, by their beginnings.

    Args:
        conversations: what arrives.
        prefill_s: seconds of a turn for each new token of its prompt.
        decode_s: seconds for each token of its answer.
        seed: of the answers' tokens.
    """
    rng = random.Random(seed)
    events = []
    for conversation in conversations:
        clock, history = conversation.arrives_s, list(conversation.shared)
        for turn in conversation.turns:
            history += turn.new
            answer = tuple(rng.randrange(1 << 16) for _ in range(turn.output_len))
            ends = clock + prefill_s * len(turn.new) + decode_s * len(answer)
            events.append(Event(clock, ends, tuple(history), answer))
            history += answer
            clock = ends + conversation.think_s
    return sorted(events, key=lambda event: event.begins_s)


class PolicyTree(PrefixTree):
    """A prefix tree that evicts the idle leaf with the lowest rank. A block's rank does not change while it is idle."""

    def __init__(self, block_size: int, rank: Callable[[PolicyTree, int], float]) -> None:
        """``rank`` of an idle leaf decides: the lowest is evicted. Ties go to the least recently used."""
        super().__init__(block_size, max_protected=0)
        self._rank = rank
        self._children: dict[int, int] = {}
        self._parents: dict[int, int] = {}
        self._idle_since: dict[int, int] = {}
        self._serials = count()
        self._leaves: list[tuple[float, int, int]] = []  # may have entries of blocks that are no idle leaves any more
        self.hits: dict[int, int] = {}
        self.depths: dict[int, int] = {}

    @override
    def insert(self, parent: int, tokens: tuple[int, ...], block: int) -> int:
        known = super().insert(parent, tokens, block)
        if known == block and block not in self._parents:
            self._parents[block] = parent
            self._children[parent] = self._children.get(parent, 0) + 1
            self.hits[block] = 0
            self.depths[block] = self.depths.get(parent, 0) + 1
        return known

    @override
    def match(self, tokens: Sequence[int], max_blocks: int) -> list[int]:
        path = super().match(tokens, max_blocks)
        for block in path:
            self.hits[block] += 1
        return path

    @override
    def hold(self, block: int) -> None:
        super().hold(block)
        self._idle_since.pop(block, None)

    @override
    def idle(self, block: int) -> bool:
        if not super().idle(block):
            return False
        self._idle_since[block] = next(self._serials)
        self._offer(block)
        return True

    @override
    def evict(self) -> int:
        while True:
            _, since, block = heapq.heappop(self._leaves)
            if self._idle_since.get(block) == since and not self._children.get(block):
                break
        self._idle.move_to_end(block, last=False)
        assert super().evict() == block
        parent = self._parents.pop(block)
        self._children[parent] -= 1
        self._children.pop(block, None)
        del self._idle_since[block], self.hits[block], self.depths[block]
        if parent in self._idle_since:
            self._offer(parent)
        return block

    def _offer(self, block: int) -> None:
        if not self._children.get(block):
            heapq.heappush(self._leaves, (self._rank(self, block), self._idle_since[block], block))


def _frequency(tree: PolicyTree, block: int) -> float:
    """Least frequently used, among equals least recently."""
    return tree.hits[block]


def _depth(tree: PolicyTree, block: int) -> float:
    """The deepest first: what is near the root is shared the most."""
    return -tree.depths[block]


def simulate(events: Sequence[Event], blocks: int, block_size: int, tree: PrefixTree) -> tuple[int, int, int]:
    """Replay a trace on a pool of ``blocks``.

    A turn whose blocks are not to be had waits until others end, as in the engine.

    Returns:
        The prompt tokens that were found, all prompt tokens, and the turns that could not fit at all.
    """
    pool = BlockPool(blocks, tree)
    running: list[tuple[float, int, list[int], Event]] = []
    found = total = refused = 0
    for number, event in enumerate(events):
        while running and running[0][0] <= event.begins_s:
            _end(pool, block_size, heapq.heappop(running))
        whole = len(event.prompt) + len(event.answer)
        wanted = -(-whole // block_size)
        if wanted > blocks:
            refused += 1
            continue
        while True:
            path = pool.match(event.prompt, pool.shareable(len(event.prompt) - 1))
            pool.acquire(path)
            if wanted - len(path) <= pool.available:
                break
            pool.release(path)
            _end(pool, block_size, heapq.heappop(running))
        held = path + pool.allocate(wanted - len(path))
        found, total = found + len(path) * block_size, total + len(event.prompt)
        _register(pool, block_size, held, event.prompt)
        heapq.heappush(running, (event.ends_s, number, held, event))
    return found, total, refused


def _register(pool: BlockPool, size: int, held: list[int], tokens: Sequence[int]) -> None:
    for index in range(len(tokens) // size):
        parent = held[index - 1] if index else ROOT
        held[index] = pool.register(parent, tuple(tokens[index * size : (index + 1) * size]), held[index])


def _end(pool: BlockPool, size: int, turn: tuple[float, int, list[int], Event]) -> None:
    _, _, held, event = turn
    # The last token of an answer is never computed, so a block that it would fill is not registered.
    _register(pool, size, held, (*event.prompt, *event.answer)[:-1])
    pool.release(held)


POLICIES: Mapping[str, Callable[[int, int], PrefixTree]] = {
    "lru": lambda size, blocks: PrefixTree(size, max_protected=0),
    "segmented": lambda size, blocks: PrefixTree(size, max_protected=int(0.8 * blocks)),
    "lfu": lambda size, blocks: PolicyTree(size, _frequency),
    "deepest": lambda size, blocks: PolicyTree(size, _depth),
    "random": lambda size, blocks: PolicyTree(size, _Random(0)),
}
"""Makes the tree of a policy for a block size and a number of blocks."""


class _Random:
    """A random rank."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def __call__(self, tree: PolicyTree, block: int) -> float:
        return self._rng.random()


def compare(events: Sequence[Event], shares: Sequence[float], block_size: int = 16) -> Iterator[dict[str, object]]:
    """The hit rate of each policy in caches of several sizes.

    Args:
        events: the trace.
        shares: the size of each cache, as a share of the blocks that the whole trace fills.
        block_size: tokens of a block.
    """
    distinct: set[int] = set()
    for event in events:  # distinct full blocks, by the prefix that they end
        tokens, prefix = (*event.prompt, *event.answer), 0
        for start in range(0, len(tokens) // block_size * block_size, block_size):
            prefix = hash((prefix, tokens[start : start + block_size]))
            distinct.add(prefix)
    longest = max(-(-(len(event.prompt) + len(event.answer)) // block_size) for event in events)
    for share in shares:
        blocks = max(longest, round(share * len(distinct)))
        for name, tree in POLICIES.items():
            found, total, refused = simulate(events, blocks, block_size, tree(block_size, blocks))
            yield {
                "policy": name,
                "cache_share": share,
                "blocks": blocks,
                "hit_rate": round(found / total, 4),
                "prompt_tokens": total,
                "refused": refused,
            }
