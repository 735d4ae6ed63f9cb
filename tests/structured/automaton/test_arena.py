from __future__ import annotations

import random

import numpy as np
import torch
from byte_automata import compile_bytes
from small_vocabulary import vocabulary

from draftline.kernels.constraints import ConstraintTable
from draftline.structured.automaton.arena import Allocation, AutomatonArena
from draftline.structured.automaton.draft_table import DraftTable
from draftline.structured.automaton.token_automaton import TokenAutomaton, compile_tokens

VOCABULARY = vocabulary("ab", "abc", '{"', silent=2)
SIZE = len(VOCABULARY.tokens)


def compiled(expression: str) -> tuple[TokenAutomaton, DraftTable]:
    automaton = compile_tokens(
        compile_bytes(expression, 10_000),
        VOCABULARY.tokens,
        sorted(VOCABULARY.eos_ids),
        budgets=True,
        max_bytes=1 << 24,
    )
    return automaton, DraftTable.of(automaton, VOCABULARY)


def make(words: int, masks: int) -> tuple[ConstraintTable, AutomatonArena]:
    table = ConstraintTable.allocate(4, SIZE, words=words, masks=masks, samples=3, device=torch.device("cpu"))
    return table, AutomatonArena(table)


def holds(table: ConstraintTable, place: Allocation, automaton: TokenAutomaton, drafts: DraftTable) -> bool:
    """Whether the table has the same contents as the automaton, for every state."""
    words, masks = table.words.numpy(), table.masks.numpy()
    classes = words[place.classes : place.first].view(np.uint16)[:SIZE]
    if not np.array_equal(classes, automaton.token_class):
        return False
    for state in range(automaton.states):
        record = words[place.address(state) : place.address(state + 1)]
        after = [0 if target < 0 else place.address(int(target)) for target in automaton.next[state]]
        first, end = automaton.budget_first[state : state + 2]
        budgets = record[1]
        pairs = words[budgets + 1 : budgets + 1 + 2 * words[budgets]].reshape(-1, 2)
        forced = drafts.tokens[drafts.first[state] : drafts.first[state + 1]]
        listed = words[record[2] + 1 : record[2] + 1 + words[record[2]]] if record[2] else forced[:0]
        if not (
            np.array_equal(masks[record[0]], automaton.masks[automaton.mask_of[state]])
            and np.array_equal(pairs[:, 0], automaton.budget_distance[first:end])
            and np.array_equal(masks[pairs[:, 1]], automaton.masks[automaton.budget_mask[first:end]])
            and np.array_equal(listed, forced)
            and record[3:].tolist() == after
        ):
            return False
    return True


def test_automata_in_use_stay_intact_while_others_come_and_go() -> None:
    rng = random.Random(0)
    every = [compiled(f"[a-z]{{{least},{least + 5}}}x(abc|ab){{2}}abcabc") for least in range(12)]
    size = 4000
    table, arena = make(3 * size, 100)
    running: list[tuple[int, Allocation]] = []
    refused = 0
    for _ in range(200):
        if running and rng.random() < 0.5:
            which, _ = running.pop(rng.randrange(len(running)))
            arena.release(every[which][0])
        else:
            which = rng.randrange(len(every))
            place = arena.acquire(*every[which])
            if place is None:
                refused += 1
                assert len({which for which, _ in running}) >= 2
            else:
                running.append((which, place))
        arena.check()
        for which, place in running:
            assert holds(table, place, *every[which])
    assert 0 < refused < 100


def test_a_released_automaton_stays_until_its_memory_is_needed() -> None:
    automaton, drafts = compiled("abc")
    _, arena = make(10_000, 100)
    place = arena.acquire(automaton, drafts)
    arena.release(automaton)
    assert arena.acquire(automaton, drafts) is place


def test_an_automaton_that_never_fits_is_not_allocated() -> None:
    _, arena = make(100, 100)
    assert arena.acquire(*compiled("[a-z]{50}")) is None
    _, arena = make(100_000, 3)
    assert arena.acquire(*compiled("[a-z]{50}")) is None
    arena.check()
