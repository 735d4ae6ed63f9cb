"""The prefix tree alone: matching, duplicates, and the order of eviction."""

from __future__ import annotations

import pytest

from draftline.engine.scheduling.prefix_tree import ROOT, NoPrefixTree, PrefixTree


def tree_with_path(*blocks: int) -> PrefixTree:
    """A tree with one path, whose block b holds the tokens (b, b)."""
    tree = PrefixTree(block_size=2)
    for parent, block in zip((ROOT, *blocks), blocks, strict=False):
        assert tree.insert(parent, (block, block), block) == block
    return tree


def test_match_finds_the_longest_path_of_whole_blocks() -> None:
    tree = tree_with_path(4, 7)
    assert tree.match([4, 4, 7, 7, 9], max_blocks=9) == [4, 7]
    assert tree.match([4, 4, 7], max_blocks=9) == [4]
    assert tree.match([4, 4, 9, 9], max_blocks=9) == [4]
    assert tree.match([7, 7], max_blocks=9) == []


def test_match_is_cut_at_max_blocks() -> None:
    assert tree_with_path(4, 7).match([4, 4, 7, 7], max_blocks=1) == [4]


def test_the_same_tokens_under_another_parent_are_another_node() -> None:
    tree = tree_with_path(1, 2)
    assert tree.insert(ROOT, (2, 2), 3) == 3
    assert tree.match([2, 2], 1) == [3]
    assert tree.match([1, 1, 2, 2], 2) == [1, 2]
    tree.check([1, 1, 1, 1])


def test_inserting_known_tokens_returns_the_older_block() -> None:
    tree = tree_with_path(1, 2)
    assert tree.insert(1, (2, 2), 5) == 2
    assert not tree.idle(5)
    tree.check([0, 1, 1, 0, 0, 0])


def test_eviction_takes_the_least_recently_used_leaf() -> None:
    tree = tree_with_path(0, 1)
    tree.insert(ROOT, (2, 2), 2)
    for block in (2, 1, 0):
        assert tree.idle(block)
    tree.hold(2)
    tree.idle(2)
    tree.check([0, 0, 0])
    assert [tree.evict() for _ in range(3)] == [1, 0, 2]
    assert tree.match([0, 0, 1, 1], 2) == []
    assert tree.idle_count == 0


def test_a_reused_parent_block_does_not_bring_old_children_back() -> None:
    tree = tree_with_path(0, 1)
    tree.idle(1)
    tree.idle(0)
    assert [tree.evict(), tree.evict()] == [1, 0]
    tree.insert(ROOT, (9, 9), 0)
    assert tree.match([9, 9, 1, 1], 2) == [0]


@pytest.mark.parametrize(("length", "blocks"), [(0, 0), (1, 0), (2, 1), (5, 2)])
def test_shareable_counts_whole_blocks(length: int, blocks: int) -> None:
    assert PrefixTree(2).shareable(length) == blocks


def test_check_notices_a_parent_that_would_go_before_its_child() -> None:
    tree = tree_with_path(0, 1)
    tree.idle(0)
    tree.idle(1)
    with pytest.raises(AssertionError, match="evicted before its child"):
        tree.check([0, 0])


def test_check_notices_a_held_block_under_an_idle_parent() -> None:
    tree = tree_with_path(0, 1)
    tree.idle(0)
    with pytest.raises(AssertionError, match="parent 0 is idle"):
        tree.check([0, 1])


def test_no_tree_knows_nothing() -> None:
    tree = NoPrefixTree()
    assert tree.insert(ROOT, (1, 1), 0) == 0
    assert tree.match([1, 1], 1) == []
    assert tree.shareable(100) == 0
    assert not tree.idle(0)
    assert tree.idle_count == 0
    with pytest.raises(AssertionError):
        tree.evict()
    with pytest.raises(AssertionError):
        tree.hold(0)


def idle_blocks(tree: PrefixTree, *blocks: int) -> None:
    """Blocks 0, 1, … under the root, idle in this order."""
    for block in blocks:
        tree.insert(ROOT, (block, block), block)
        tree.idle(block)


def test_what_was_reused_is_evicted_after_what_was_not() -> None:
    tree = PrefixTree(2)
    idle_blocks(tree, 0, 1)
    tree.hold(0)
    tree.idle(0)
    idle_blocks(tree, 2)
    tree.check([0, 0, 0])
    assert tree.idle_count == 3
    assert [tree.evict() for _ in range(3)] == [1, 2, 0]
    tree.check([0, 0, 0])


def test_a_prefix_that_is_shared_while_it_is_held_counts_as_reused() -> None:
    tree = PrefixTree(2)
    tree.insert(ROOT, (0, 0), 0)
    tree.hold(0)  # a second sequence, while the first holds it
    tree.idle(0)
    idle_blocks(tree, 1)
    assert tree.evict() == 1


def test_too_many_reused_blocks_become_ordinary_again_from_the_oldest() -> None:
    tree = PrefixTree(2, max_protected=1)
    idle_blocks(tree, 0, 1)
    for block in (0, 1):
        tree.hold(block)
        tree.idle(block)
    idle_blocks(tree, 2)
    tree.check([0, 0, 0])
    assert [tree.evict() for _ in range(3)] == [0, 2, 1]


def test_without_protected_blocks_eviction_is_lru() -> None:
    tree = PrefixTree(2, max_protected=0)
    idle_blocks(tree, 0, 1, 2)
    tree.hold(0)
    tree.idle(0)
    assert [tree.evict() for _ in range(3)] == [1, 2, 0]


def test_an_evicted_block_begins_anew() -> None:
    tree = PrefixTree(2)
    idle_blocks(tree, 0)
    tree.hold(0)
    tree.idle(0)
    assert tree.evict() == 0
    idle_blocks(tree, 0, 1)
    assert tree.evict() == 0
