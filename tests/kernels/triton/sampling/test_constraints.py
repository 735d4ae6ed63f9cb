"""Constraints on the device against the reference, and the reference against the matcher on the host."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from byte_automata import compile_bytes
from torch import Tensor

from draftline.kernels.constraints import FREE, HOST, ConstraintTable
from draftline.kernels.reference import constraints as reference_constraints
from draftline.kernels.slots import SampleRows, SamplingFeatures, SlotTable
from draftline.kernels.triton.sampling import constraints as triton_constraints
from draftline.structured.automaton.arena import Allocation, AutomatonArena
from draftline.structured.automaton.draft_table import DraftTable
from draftline.structured.automaton.matcher import AutomatonMatcher
from draftline.structured.automaton.token_automaton import TokenAutomaton, compile_tokens
from draftline.structured.language import Concatenation, Language, Leaf, Tag
from draftline.structured.tags.determinize import determinize
from draftline.structured.tags.form import REASONING
from draftline.structured.tags.nfa_builder import NfaBuilder
from draftline.structured.vocabulary import ByteVocabulary

TOKENS = (b"", *(b"%c" % letter for letter in b"abcdefg"), b"ab", b"abc", b"bcd", b"efg", b"gg", b"", b"")
EOS = (13, 14)
SLOTS, DRAFTS, LENGTH = 12, 4, 40
FORMS = pytest.mark.parametrize("form", [triton_constraints, reference_constraints], ids=["triton", "reference"])


def encode(text: str) -> list[int]:
    return [TOKENS.index(letter.encode()) for letter in text]


VOCABULARY = ByteVocabulary(TOKENS, frozenset(EOS), frozenset({0, *EOS}), encode)


@dataclass
class World:
    """Slots that are constrained by automata, by the host, or not at all."""

    table: ConstraintTable
    slots: SlotTable
    automata: list[tuple[TokenAutomaton, DraftTable, Allocation]]
    matchers: dict[int, AutomatonMatcher]  # by slot, of those that an automaton constrains
    which: dict[int, int]
    ends: dict[int, tuple[int, int]]  # of the text, and of the reasoning


def make_world(device: torch.device, rng: random.Random) -> World:
    table = ConstraintTable.allocate(SLOTS, len(TOKENS), words=20_000, masks=300, samples=DRAFTS + 1, device=device)
    arena = AutomatonArena(table)
    automata = []
    languages = [compile_bytes(regex, 1000) for regex in ("(a|bc)*d?", "[a-g]{0,20}", "abcdefg(g|abc)+")]
    content, answer = (Leaf(Language(regex, ""), "", is_json=False) for regex in ("[b-f]*", "[ab]{2,9}"))
    form = Concatenation((Tag(REASONING, "a", content, ("gg",)), answer))
    languages.append(determinize(NfaBuilder(1000).build(form), 1000))
    for number, language in enumerate(languages):
        early = language.early is not None
        automaton = compile_tokens(language, TOKENS, EOS, budgets=number > 0, early_budgets=early, max_bytes=1 << 20)
        drafts = DraftTable.of(automaton, VOCABULARY)
        place = arena.acquire(automaton, drafts)
        assert place is not None
        automata.append((automaton, drafts, place))
    slots = SlotTable.allocate(SLOTS, LENGTH, 1, device)
    world = World(table, slots, automata, {}, {}, {})
    for slot in range(SLOTS):
        kind = slot % 6
        table.states[slot] = HOST if kind == 5 else FREE
        slots.lengths[slot] = rng.randrange(2, 20)
        if kind >= 4:
            continue
        automaton, _, place = automata[kind]
        matcher = AutomatonMatcher(automaton)
        for _ in range(rng.randrange(4)):
            assert matcher.advance(rng.choice(legal(matcher)))
        world.matchers[slot], world.which[slot] = matcher, kind
        end = int(slots.lengths[slot]) + int(automaton.distance[matcher.state]) + rng.randrange(8)
        world.ends[slot] = end, end - automaton.late_distance - rng.randrange(3)
        table.states[slot] = place.address(matcher.state)
        table.classes[slot] = place.classes
        table.ends[slot] = torch.tensor(world.ends[slot], dtype=torch.int32)
    return world


def legal(matcher: AutomatonMatcher) -> list[int]:
    words = np.empty(1, np.int32)
    matcher.fill_mask(words)
    return [token for token in range(len(TOKENS)) if words[0] >> token & 1]


def verify_rows(world: World, rng: random.Random, order: Sequence[int]) -> tuple[SampleRows, Tensor, list[list[int]]]:
    """Rows of some slots with drafts, some legal and some not, some slots without samples, and padding behind."""
    device = world.table.words.device
    starts, slots, positions, drafted = [0], [], [], []
    for slot in order:
        samples = rng.randrange(DRAFTS + 2)
        drafts: list[int] = []
        matcher = world.matchers.get(slot)
        for _ in range(samples - 1):
            walked = sum(1 for draft in drafts if matcher is not None and matcher.advance(draft))
            options = legal(matcher) if matcher is not None and rng.random() < 0.8 else range(len(TOKENS))
            drafts.append(rng.choice(list(options)))
            if matcher is not None:
                matcher.rollback(walked)
        position = int(world.slots.lengths[slot])
        for place, draft in enumerate(drafts):
            world.slots.tokens[slot, position + place] = draft
        starts.append(starts[-1] + samples)
        slots += [slot] * samples
        positions += range(position, position + samples)
        drafted.append(drafts if samples else [])
    padding = 3
    rows = SampleRows(
        torch.tensor(slots + [0] * padding, device=device),
        torch.tensor(positions + [-1] * padding, device=device),
        SamplingFeatures.MASK,
        None,
    )
    return rows, torch.tensor(starts, dtype=torch.int32, device=device), drafted


@FORMS
@pytest.mark.parametrize("seed", range(6))
def test_every_position_has_the_matchers_mask_and_states_follow_what_is_kept(
    form: object, seed: int, device: torch.device
) -> None:
    rng = random.Random(seed)
    world = make_world(device, rng)
    order = rng.sample(range(SLOTS), SLOTS - 2)
    rows, starts, drafted = verify_rows(world, rng, order)
    constrained = form.constrain(rows, starts, world.slots, world.table)  # type: ignore[attr-defined]
    masks = world.table.masks[constrained.mask_rows.long()].cpu().numpy()
    begins = starts.tolist()
    tokens = torch.zeros(len(rows.slots), dtype=torch.int64, device=device)
    accepted = []
    for row, slot in enumerate(order):
        begin, end = begins[row], begins[row + 1]
        matcher = world.matchers.get(slot)
        expected = np.empty(1, np.int32)
        kept = 0
        for place in range(begin, end):
            index = place - begin
            if int(world.table.states[slot]) == HOST:
                row_of_host = world.table.host_masks + slot * world.table.host_samples + index
                assert int(constrained.mask_rows[place]) == row_of_host
            elif matcher is None:
                assert int(constrained.mask_rows[place]) == 0
            elif kept == index:  # all drafts before it were legal
                left = [end - int(rows.positions[place]) if world.which[slot] else None for end in world.ends[slot]]
                automaton = world.automata[world.which[slot]][0]
                AutomatonMatcher(automaton, matcher.state, *left).fill_mask(expected)
                assert masks[place][0] == expected[0]
                assert constrained.states[place] == world.automata[world.which[slot]][2].address(matcher.state)
            if matcher is not None and place < end - 1 and kept == index:
                kept += matcher.advance(drafted[row][index])
        if matcher is None or begin == end:
            accepted.append(0 if begin == end else rng.randrange(1, end - begin + 1))
            continue
        # Some of the legal drafts are kept, and one more token.
        keep = rng.randrange(kept + 1)
        matcher.rollback(kept - keep)
        last = rng.choice(legal(matcher))
        assert matcher.advance(last)
        tokens[begin : begin + keep] = torch.tensor(drafted[row][:keep], dtype=torch.int64)
        tokens[begin + keep] = last
        accepted.append(keep + 1)
    assert masks[begins[-1] :].tolist() == [[-1]] * 3
    before = world.table.states.clone()
    kept_counts = torch.tensor(accepted, dtype=torch.int32, device=device)
    form.advance_constraints(tokens, kept_counts, rows, starts, constrained, world.table)  # type: ignore[attr-defined]
    for slot in range(SLOTS):
        if slot in world.matchers:
            address = world.automata[world.which[slot]][2].address(world.matchers[slot].state)
            assert int(world.table.states[slot]) == address
        else:
            assert world.table.states[slot] == before[slot]


@FORMS
def test_a_token_that_is_not_allowed_changes_no_state(form: object, device: torch.device) -> None:
    rng = random.Random(1)
    world = make_world(device, rng)
    slot = 2
    world.slots.tokens[slot, int(world.slots.lengths[slot])] = 0
    position = int(world.slots.lengths[slot])
    rows = SampleRows(
        torch.tensor([slot, slot], device=device),
        torch.tensor([position, position + 1], device=device),
        SamplingFeatures.MASK,
        None,
    )
    starts = torch.tensor([0, 2], dtype=torch.int32, device=device)
    before = world.table.states.clone()
    for tokens, kept in (([0, 1], 1), ([0, 1], 2)):
        constrained = form.constrain(rows, starts, world.slots, world.table)  # type: ignore[attr-defined]
        assert constrained.states.tolist()[1] == 0
        form.advance_constraints(  # type: ignore[attr-defined]
            torch.tensor(tokens, device=device),
            torch.tensor([kept], dtype=torch.int32, device=device),
            rows,
            starts,
            constrained,
            world.table,
        )
        assert torch.equal(world.table.states, before)


@FORMS
@pytest.mark.parametrize("count", [1, 3, 8])
def test_forced_tokens_are_drafted_over_what_stands_there(form: object, count: int, device: torch.device) -> None:
    world = make_world(device, random.Random(2))
    automaton, drafts, place = world.automata[2]
    slots = [1, 4, 7, 2, 0]
    for slot, state in zip(slots[2:], [0, 2, automaton.states - 1], strict=True):
        world.table.states[slot] = place.address(state)
    world.slots.tokens.fill_(-7)
    expected = world.slots.tokens.clone()
    for slot, state in zip(slots[2:], [0, 2, automaton.states - 1], strict=True):
        forced = drafts.tokens[drafts.first[state] : drafts.first[state + 1]][:count]
        length = int(world.slots.lengths[slot])
        expected[slot, length : length + len(forced)] = torch.from_numpy(forced).to(device)
    rows = torch.tensor(slots, device=device)
    form.draft_forced(rows, count, world.slots, world.table)  # type: ignore[attr-defined]
    assert torch.equal(world.slots.tokens, expected)
    assert int((expected != -7).sum()) >= min(count, 2)


def test_no_rows_are_no_trouble(device: torch.device) -> None:
    world = make_world(device, random.Random(3))
    nothing = torch.zeros(0, dtype=torch.int64, device=device)
    rows = SampleRows(nothing, nothing, SamplingFeatures.MASK, None)
    starts = torch.zeros(1, dtype=torch.int32, device=device)
    for form in (triton_constraints, reference_constraints):
        constrained = form.constrain(rows, starts, world.slots, world.table)
        form.advance_constraints(nothing, starts[:0], rows, starts, constrained, world.table)
        form.draft_forced(nothing, 3, world.slots, world.table)
        assert not len(constrained.mask_rows)
