"""The block pool with its prefix tree, alone and against a plain model."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from examples import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from draftline.engine.scheduling.block_pool import BlockPool
from draftline.engine.scheduling.prefix_tree import ROOT, NoPrefixTree, PrefixTree

Path = tuple[int, ...]


def test_a_pool_without_blocks_is_an_error() -> None:
    with pytest.raises(ValueError, match="num_blocks"):
        BlockPool(0, NoPrefixTree())


def test_allocated_blocks_are_distinct_and_come_back() -> None:
    pool = BlockPool(3, PrefixTree(2))
    blocks = pool.allocate(3)
    assert sorted(blocks) == [0, 1, 2]
    assert pool.available == 0
    pool.release(blocks)
    assert (pool.free, pool.cached, pool.available) == (3, 0, 3)
    pool.check([])


def test_allocating_too_many_takes_nothing() -> None:
    pool = BlockPool(2, PrefixTree(2))
    with pytest.raises(RuntimeError, match="3 cache blocks are needed but only 2"):
        pool.allocate(3)
    assert pool.free == 2


def test_releasing_twice_is_an_error() -> None:
    pool = BlockPool(2, PrefixTree(2))
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(RuntimeError, match="no sequence holds"):
        pool.release(blocks)


def test_registered_blocks_stay_cached_until_others_need_them() -> None:
    pool = BlockPool(2, PrefixTree(1))
    first, second = blocks = pool.allocate(2)
    pool.register(ROOT, (5,), first)
    pool.register(first, (6,), second)
    pool.release(blocks)
    assert (pool.free, pool.cached) == (0, 2)
    assert pool.match([5, 6], 2) == blocks
    assert pool.allocate(1) == [second]  # the leaf
    assert pool.match([5, 6], 2) == [first]


def test_a_duplicate_gives_way_to_the_block_that_is_known() -> None:
    pool = BlockPool(2, PrefixTree(1))
    (first,), (second,) = pool.allocate(1), pool.allocate(1)
    assert pool.register(ROOT, (5,), first) == first
    assert pool.register(ROOT, (5,), second) == first
    assert pool.references(first) == 2
    assert pool.free == 1
    pool.check([[first], [first]])


def test_a_duplicate_of_an_idle_block_brings_it_back() -> None:
    pool = BlockPool(2, PrefixTree(1))
    (first,), (second,) = pool.allocate(1), pool.allocate(1)
    pool.register(ROOT, (5,), first)
    pool.release([first])
    assert pool.register(ROOT, (5,), second) == first
    assert (pool.free, pool.cached) == (1, 0)
    pool.check([[first]])


def test_forgetting_frees_only_blocks_without_holders() -> None:
    pool = BlockPool(3, PrefixTree(1))
    first, second, third = pool.allocate(3)
    pool.register(ROOT, (1,), first)
    pool.register(first, (2,), second)
    pool.register(ROOT, (3,), third)
    pool.release([third])
    pool.release([second])
    pool.forget_cached()
    assert (pool.free, pool.cached) == (2, 0)
    assert pool.match([1, 2], 2) == [first]
    pool.check([[first]])


def test_without_a_tree_released_blocks_are_free() -> None:
    pool = BlockPool(1, NoPrefixTree())
    blocks = pool.allocate(1)
    assert pool.register(ROOT, (1, 2), blocks[0]) == blocks[0]
    pool.release(blocks)
    assert (pool.free, pool.cached) == (1, 0)


@pytest.mark.parametrize(
    ("holders", "message"),
    [([[0]], "block 1 has 0 holders but 1"), ([[0, 1], [1]], "block 1 has 2 holders but 1"), ([[7]], "does not exist")],
)
def test_check_compares_references_with_holders(holders: list[list[int]], message: str) -> None:
    pool = BlockPool(3, PrefixTree(1))
    pool.allocate(2)
    with pytest.raises(AssertionError, match=message):
        pool.check(holders)


@dataclass
class Holder:
    """A sequence as the pool sees it: tokens in whole blocks, and the first ``registered`` blocks known."""

    tokens: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    registered: int = 0


BLOCK_SIZE = 2
block_tokens = st.tuples(*[st.integers(0, 1)] * BLOCK_SIZE)


class PoolMachine(RuleBasedStateMachine):
    """Random holders against a model that keeps whole paths and looks for the oldest idle leaf."""

    NUM_BLOCKS = 7

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(self.NUM_BLOCKS, PrefixTree(BLOCK_SIZE, max_protected=2))
        self.holders: list[Holder] = []
        self.known: dict[Path, int] = {}
        self.idle: list[Path] = []

    def references(self, block: int) -> int:
        return sum(holder.blocks.count(block) for holder in self.holders)

    def model_match(self, tokens: list[int]) -> list[int]:
        path: list[int] = []
        while (beginning := tuple(tokens[: (len(path) + 1) * BLOCK_SIZE])) in self.known:
            path.append(self.known[beginning])
            if len(path) * BLOCK_SIZE == len(tokens):
                break
        return path

    def model_evict(self) -> int:
        def is_leaf(path: Path) -> bool:
            return not any(other[: len(path)] == path for other in self.known if other != path)

        oldest = next(path for path in self.idle if is_leaf(path))
        self.idle.remove(oldest)
        return self.known.pop(oldest)

    def model_hold(self, blocks: list[int]) -> None:
        self.idle = [path for path in self.idle if self.known[path] not in blocks]

    def model_release(self, blocks: list[int]) -> None:
        paths = {block: path for path, block in self.known.items()}
        self.idle += [paths[b] for b in reversed(blocks) if b in paths and not self.references(b)]

    @rule(content=st.lists(block_tokens, max_size=4))
    def start(self, content: list[Path]) -> None:
        tokens = [token for block in content for token in block]
        path = self.pool.match(tokens, len(content))
        assert path == self.model_match(tokens)
        self.pool.acquire(path)
        self.model_hold(path)
        self.holders.append(Holder(tokens[: len(path) * BLOCK_SIZE], path, len(path)))

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), content=st.lists(block_tokens, min_size=1, max_size=3))
    def extend(self, data: st.DataObject, content: list[Path]) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        if len(content) > self.pool.available:
            with pytest.raises(RuntimeError):
                self.pool.allocate(len(content))
            return
        evictions = max(0, len(content) - self.pool.free)
        evicted = [self.model_evict() for _ in range(evictions)]
        blocks = self.pool.allocate(len(content))
        assert set(evicted) <= set(blocks)
        holder.blocks += blocks
        holder.tokens += [token for block in content for token in block]

    @precondition(lambda self: any(holder.registered < len(holder.blocks) for holder in self.holders))
    @rule(data=st.data())
    def register(self, data: st.DataObject) -> None:
        holder = data.draw(st.sampled_from([h for h in self.holders if h.registered < len(h.blocks)]))
        index, own = holder.registered, holder.blocks[holder.registered]
        path = tuple(holder.tokens[: (index + 1) * BLOCK_SIZE])
        parent = holder.blocks[index - 1] if index else ROOT
        block = self.pool.register(parent, path[-BLOCK_SIZE:], own)
        assert block == self.known.setdefault(path, own)
        self.model_hold([block])
        holder.blocks[index] = block
        holder.registered += 1

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        holder = self.holders.pop(data.draw(st.integers(0, len(self.holders) - 1)))
        self.pool.release(holder.blocks)
        self.model_release(holder.blocks)

    @rule()
    def forget(self) -> None:
        self.pool.forget_cached()
        for path in self.idle:
            del self.known[path]
        self.idle.clear()

    @invariant()
    def agrees_with_the_model(self) -> None:
        self.pool.check([holder.blocks for holder in self.holders])
        held = {block for holder in self.holders for block in holder.blocks}
        assert self.pool.cached == len(self.idle)
        assert self.pool.free == self.NUM_BLOCKS - len(held) - len(self.idle)
        for path, block in self.known.items():
            assert self.pool.match(path, len(path) // BLOCK_SIZE)[-1] == block
        for holder in self.holders:
            self.pool.check_path(holder.blocks[: holder.registered], holder.tokens)

    def teardown(self) -> None:
        for holder in self.holders:
            self.pool.release(holder.blocks)
        self.pool.check([])
        assert self.pool.available == self.NUM_BLOCKS


PoolMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestPoolMachine = PoolMachine.TestCase
