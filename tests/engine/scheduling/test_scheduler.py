"""The scheduler's rules, one at a time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import count

import pytest

from draftline.engine.params import SamplingParams
from draftline.engine.request.sequence import Plan, Row, Sequence
from draftline.engine.scheduling.planner import MAX_PROMPT_LOGITS
from draftline.engine.scheduling.scheduler import Scheduler, no_drafts

arrival_times = count()


def make(
    *,
    num_blocks: int = 100,
    block_size: int = 4,
    num_slots: int = 8,
    token_budget: int = 100,
    max_model_len: int = 1000,
    prefix_caching: bool = True,
) -> Scheduler:
    return Scheduler(
        num_blocks=num_blocks,
        block_size=block_size,
        num_slots=num_slots,
        token_budget=token_budget,
        max_model_len=max_model_len,
        prefix_caching=prefix_caching,
    )


def sequence(
    prompt: int | list[int],
    max_tokens: int = 20,
    *,
    order: float | None = None,
    leader: Sequence | None = None,
    prompt_logprobs: int | None = None,
) -> Sequence:
    """A new sequence; a prompt given as a length has tokens that no other prompt has."""
    arrived = next(arrival_times)
    tokens = [1000 * arrived + i for i in range(prompt)] if isinstance(prompt, int) else list(prompt)
    return Sequence(
        request_id=f"r{arrived}",
        index=0,
        tokens=tokens,
        prompt_len=len(tokens),
        sampling=SamplingParams(prompt_logprobs=prompt_logprobs),
        seed=0,
        max_len=len(tokens) + max_tokens,
        order=float(arrived) if order is None else order,
        leader=leader,
    )


def add(scheduler: Scheduler, *sequences: Sequence) -> None:
    for new in sequences:
        scheduler.add(new)
        scheduler.check()


def step(
    scheduler: Scheduler,
    draft_len: Callable[[Sequence], int] = no_drafts,
    accept: Callable[[Row], list[int]] = lambda row: [7] * (row.drafts + 1),
) -> Plan:
    """Plan and commit one step in which every sampling row accepts ``accept``'s tokens, and finish complete sequences."""
    plan = scheduler.plan(draft_len)
    scheduler.commit(plan, [accept(row) if row.samples else [] for row in plan.rows])
    for row in plan.rows:
        if len(row.sequence.tokens) >= row.sequence.max_len:
            scheduler.finish(row.sequence)
    scheduler.check()
    return plan


def sequences(plan: Plan) -> list[Sequence]:
    return [row.sequence for row in plan.rows]


def shape(plan: Plan) -> list[tuple[int, int, int]]:
    return [(row.start, row.count, row.drafts) for row in plan.rows]


def entries(sequence: Sequence, first: int = 0) -> tuple[tuple[int | None, int, int], ...]:
    """The entries of the sequence's block table from index ``first`` on, as `Plan.new_blocks` has them."""
    return tuple((sequence.slot, index, block) for index, block in enumerate(sequence.blocks) if index >= first)


def test_it_runs_without_torch() -> None:
    code = "import sys, draftline.engine.scheduling.scheduler; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("option", ["num_blocks", "block_size", "num_slots", "token_budget"])
def test_sizes_below_one_are_errors(option: str) -> None:
    with pytest.raises(ValueError, match=option):
        make(**{option: 0})  # type: ignore[arg-type]


def test_it_has_prompts_until_only_newest_tokens_are_left() -> None:
    scheduler = make(token_budget=8)
    one = sequence(4)
    add(scheduler, one)
    assert scheduler.has_prompts, "it waits"
    step(scheduler)
    assert not scheduler.has_prompts
    step(scheduler, lambda _: 2)
    assert not scheduler.has_prompts, "drafts are none"

    preempted = sequence(4)
    preempted.tokens += range(8)
    add(scheduler, preempted)
    step(scheduler)
    assert preempted.computed >= preempted.prompt_len
    assert scheduler.has_prompts, "it computes its output again"
    step(scheduler)
    assert not scheduler.has_prompts


class TestAdding:
    def test_fits_knows_the_model_and_the_cache(self) -> None:
        scheduler = make(num_blocks=3, block_size=4, max_model_len=1000)
        assert scheduler.fits(prompt_len=12, max_len=13)  # the last token's keys and values are never needed
        assert not scheduler.fits(prompt_len=12, max_len=14)
        assert not scheduler.fits(prompt_len=0, max_len=4)
        assert not scheduler.fits(prompt_len=4, max_len=4)
        assert not make(max_model_len=10).fits(prompt_len=5, max_len=11)

    def test_a_sequence_that_does_not_fit_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="a prompt of 12 tokens, to end at 14, does not fit: at most 13"):
            make(num_blocks=3).add(sequence(12, 2))

    def test_the_longest_sequence_runs_to_its_end(self) -> None:
        scheduler = make(num_blocks=3)
        longest = sequence(5, 8)
        add(scheduler, longest)
        for _ in range(8):
            step(scheduler, lambda _: 3, lambda row: [7])
        assert longest.finished
        assert len(longest.tokens) == 13

    def test_adding_twice_is_an_error(self) -> None:
        scheduler, one = make(), sequence(3)
        add(scheduler, one)
        with pytest.raises(ValueError, match="added before"):
            scheduler.add(one)

    def test_a_follower_needs_its_leader_added(self) -> None:
        with pytest.raises(ValueError, match="leader was not added"):
            make().add(sequence(3, leader=sequence(3)))


class TestComputing:
    def test_a_prompt_is_computed_and_then_decoded_token_by_token(self) -> None:
        scheduler, one = make(), sequence(6, 3)
        add(scheduler, one)
        assert shape(step(scheduler)) == [(0, 6, 0)]
        assert shape(step(scheduler)) == [(6, 1, 0)]
        assert shape(step(scheduler)) == [(7, 1, 0)]
        assert one.finished
        assert one.tokens[6:] == [7, 7, 7]
        assert step(scheduler) == Plan()

    def test_a_long_prompt_is_cut_to_the_budget_and_samples_only_at_its_end(self) -> None:
        scheduler, one = make(token_budget=4), sequence(10)
        add(scheduler, one)
        plan = scheduler.plan()
        assert not plan.rows[0].samples
        scheduler.commit(plan, [[]])
        assert [shape(step(scheduler)) for _ in range(3)] == [[(4, 4, 0)], [(8, 2, 0)], [(10, 1, 0)]]

    def test_prompts_whose_log_probabilities_are_wanted_share_few_tokens_a_step(self) -> None:
        """All of these need logits at once."""
        scheduler = make(num_blocks=1000, token_budget=2000, max_model_len=4000)
        add(scheduler, sequence(700, prompt_logprobs=0), sequence(30, prompt_logprobs=5), sequence(900))
        assert shape(step(scheduler)) == [(0, MAX_PROMPT_LOGITS, 0), (0, 1, 0), (0, 900, 0)]
        assert shape(step(scheduler)) == [(MAX_PROMPT_LOGITS, 700 - MAX_PROMPT_LOGITS, 0), (1, 29, 0), (900, 1, 0)]
        assert shape(step(scheduler)) == [(700, 1, 0), (30, 1, 0), (901, 1, 0)]

    def test_prompt_chunks_leave_a_token_for_each_decoding_row_behind_them(self) -> None:
        scheduler = make(token_budget=4)
        decoding, prompt = sequence(2, order=2), sequence(9, order=1)
        add(scheduler, decoding)
        step(scheduler)
        add(scheduler, prompt)
        assert shape(step(scheduler)) == [(2, 1, 0), (0, 3, 0)]
        plan = step(scheduler)
        assert sequences(plan) == [prompt, decoding]
        assert shape(plan) == [(3, 3, 0), (3, 1, 0)]

    def test_the_first_in_order_gets_a_token_even_if_decoding_rows_could_take_all(self) -> None:
        scheduler = make(token_budget=2)
        others = [sequence(1, order=2) for _ in range(3)]
        add(scheduler, *others)
        step(scheduler)
        step(scheduler)
        first = sequence(5, order=1)
        add(scheduler, first)
        starts = [(row.start, row.count) for _ in range(5) for row in step(scheduler).rows if row.sequence is first]
        assert starts == [(0, 1), (1, 1), (2, 1), (3, 1), (4, 1)]

    def test_commit_rejects_tokens_that_the_plan_cannot_have_decided(self) -> None:
        scheduler = make(token_budget=3)
        add(scheduler, sequence(5))
        with pytest.raises(ValueError, match="1 tokens accepted at 3 of 5"):
            scheduler.commit(scheduler.plan(), [[1]])
        with pytest.raises(ValueError, match="2 tokens accepted at 5 of 5 with 0 drafts"):
            scheduler.commit(scheduler.plan(), [[1, 2]])

    def test_a_sequence_at_its_end_must_be_finished(self) -> None:
        scheduler = make()
        add(scheduler, sequence(3, 1))
        scheduler.commit(scheduler.plan(), [[1]])
        with pytest.raises(RuntimeError, match="4 of at most 4 tokens"):
            scheduler.plan()


class TestDrafts:
    def test_accepted_drafts_advance_and_rejected_ones_are_computed_again(self) -> None:
        scheduler, one = make(), sequence(4)
        add(scheduler, one)
        step(scheduler)
        assert shape(step(scheduler, lambda _: 3, lambda row: [7, 7])) == [(4, 1, 3)]
        assert len(one.tokens) == 7
        assert shape(step(scheduler)) == [(6, 1, 0)]

    def test_a_prompt_chunk_that_does_not_reach_the_end_is_not_drafted(self) -> None:
        scheduler = make(token_budget=4)
        add(scheduler, sequence(5))
        assert [shape(step(scheduler, lambda _: 2)) for _ in range(3)] == [[(0, 4, 0)], [(4, 1, 2)], [(7, 1, 2)]]

    def test_nothing_is_drafted_that_could_not_be_accepted_before_the_end(self) -> None:
        scheduler, one = make(), sequence(4, 4)
        add(scheduler, one)
        step(scheduler)
        assert shape(step(scheduler, lambda _: 9)) == [(4, 1, 2)]
        assert one.finished
        assert len(one.tokens) == 8

    def test_drafts_are_cut_to_the_budget_in_queue_order(self) -> None:
        scheduler = make(token_budget=6)
        add(scheduler, sequence(1), sequence(1), sequence(1))
        step(scheduler)
        assert shape(step(scheduler, lambda _: 2)) == [(1, 1, 2), (1, 1, 1), (1, 1, 0)]

    def test_drafts_leave_half_of_the_rest_to_prompts(self) -> None:
        scheduler = make(token_budget=10)
        add(scheduler, sequence(1), sequence(1))
        step(scheduler)
        add(scheduler, sequence(20))
        assert shape(step(scheduler, lambda _: 3)) == [(1, 1, 3), (1, 1, 1), (0, 4, 0)]

    def test_drafts_never_take_the_block_that_another_row_needs(self) -> None:
        scheduler = make(num_blocks=3, block_size=2)
        add(scheduler, sequence(1, 4), sequence(2, 4))
        step(scheduler)  # now each has filled its block, and the second has a token without one
        plan = step(scheduler, lambda _: 8)
        assert [(row.count, row.drafts) for row in plan.rows] == [(1, 0), (1, 1)]
        assert scheduler.stats().preemptions == 0

    def test_drafts_take_blocks_that_no_row_needs(self) -> None:
        scheduler = make(num_blocks=3, block_size=2)
        add(scheduler, sequence(2, 5))
        step(scheduler)
        assert shape(step(scheduler, lambda _: 8)) == [(2, 1, 3)]

    def test_blocks_of_rejected_drafts_stay_for_the_next_tokens(self) -> None:
        scheduler, one = make(block_size=2), sequence(2)
        add(scheduler, one)
        step(scheduler)
        step(scheduler, lambda _: 5, lambda row: [7])
        blocks = list(one.blocks)
        assert len(blocks) == 4
        step(scheduler, lambda _: 2, lambda row: [7])
        assert one.blocks == blocks


class TestPrefixCache:
    def test_a_second_prompt_shares_full_blocks_but_computes_at_least_one_token(self) -> None:
        scheduler = make()
        first, same, longer = sequence(list(range(8))), sequence(list(range(8))), sequence(list(range(10)))
        add(scheduler, first)
        step(scheduler)
        add(scheduler, same, longer)
        assert shape(step(scheduler)) == [(8, 1, 0), (4, 4, 0), (8, 2, 0)]
        assert (first.cached_prompt, same.cached_prompt, longer.cached_prompt) == (0, 4, 8)
        assert longer.blocks[:2] == first.blocks[:2]
        stats = scheduler.stats()
        assert (stats.prefix_hit_tokens, stats.prefix_query_tokens) == (12, 26)

    def test_computed_blocks_outlive_their_sequence_with_output(self) -> None:
        scheduler, first = make(), sequence(list(range(6)), 4)
        add(scheduler, first)
        for _ in range(4):
            step(scheduler)
        assert first.finished
        assert scheduler.stats().cached_blocks == 2
        again = sequence([*first.tokens, 1])
        add(scheduler, again)
        assert shape(step(scheduler)) == [(8, 3, 0)]

    def test_equal_prompts_computed_at_once_end_up_sharing(self) -> None:
        scheduler = make()
        one, two = sequence(list(range(9))), sequence(list(range(9)))
        add(scheduler, one, two)
        assert shape(step(scheduler)) == [(0, 9, 0), (0, 9, 0)]
        assert two.blocks[:2] == one.blocks[:2]
        assert two.blocks[2] != one.blocks[2]
        plan = step(scheduler)
        assert plan.new_blocks == entries(two)

    def test_prompt_logprobs_need_the_whole_prompt_computed(self) -> None:
        scheduler = make()
        add(scheduler, sequence(list(range(9))))
        step(scheduler)
        asking = sequence(list(range(9)), prompt_logprobs=1)
        add(scheduler, asking)
        assert shape(step(scheduler))[1] == (0, 9, 0)
        assert asking.cached_prompt == 0

    def test_a_preempted_sequence_whose_prompt_logprobs_are_delivered_takes_its_hits(self) -> None:
        scheduler = make(num_slots=1)
        asking = sequence(8, prompt_logprobs=1, order=2)
        add(scheduler, asking)
        step(scheduler)
        add(scheduler, sequence(1, 1, order=1))
        step(scheduler)
        assert asking.preemptions == 1
        assert shape(step(scheduler)) == [(8, 1, 0)]

    def test_without_caching_nothing_is_shared(self) -> None:
        scheduler = make(prefix_caching=False)
        add(scheduler, sequence(list(range(8))))
        step(scheduler)
        add(scheduler, sequence(list(range(8))))
        assert shape(step(scheduler)) == [(8, 1, 0), (0, 8, 0)]
        assert scheduler.stats().cached_blocks == 0

    def test_forgetting_frees_blocks_without_holders(self) -> None:
        scheduler, one, two = make(), sequence(8), sequence(4)
        add(scheduler, one, two)
        step(scheduler)
        scheduler.finish(one)
        scheduler.forget_prefixes()
        scheduler.check()
        assert scheduler.stats().cached_blocks == 0
        assert scheduler.stats().free_blocks == 99


class TestFollowers:
    def test_they_wait_for_the_leaders_prompt_and_then_share_it(self) -> None:
        scheduler = make(token_budget=6)
        leader = sequence(list(range(9)))
        followers = [sequence(list(range(9)), order=leader.order, leader=leader) for _ in range(2)]
        other = sequence(1)
        add(scheduler, leader, *followers, other)
        assert sequences(step(scheduler)) == [leader]
        assert scheduler.stats().waiting == 3
        assert sequences(step(scheduler)) == [leader, other]  # followers do not block others
        plan = step(scheduler)
        assert sequences(plan) == [leader, other, *followers]
        assert shape(plan)[2:] == [(8, 1, 0), (8, 1, 0)]
        assert [follower.cached_prompt for follower in followers] == [8, 8]

    @pytest.mark.parametrize("end", ["finish", "cancel"])
    def test_they_go_on_when_the_leader_leaves_early(self, end: str) -> None:
        scheduler = make(token_budget=6)
        leader = sequence(list(range(9)))
        follower = sequence(list(range(9)), leader=leader)
        add(scheduler, leader, follower)
        step(scheduler)
        if end == "finish":
            scheduler.finish(leader)
        scheduler.cancel(leader)
        assert sequences(step(scheduler)) == [follower]

    def test_a_prompt_within_one_block_is_not_waited_for(self) -> None:
        scheduler = make()
        leader = sequence(list(range(4)))
        follower = sequence(list(range(4)), leader=leader)
        add(scheduler, leader, follower)
        assert sequences(step(scheduler)) == [leader, follower]

    def test_followers_do_not_wait_without_prefix_caching(self) -> None:
        scheduler = make(prefix_caching=False)
        leader = sequence(list(range(9)))
        follower = sequence(list(range(9)), leader=leader)
        add(scheduler, leader, follower)
        assert sequences(step(scheduler)) == [leader, follower]

    def test_a_waiting_follower_can_be_cancelled(self) -> None:
        scheduler = make(token_budget=6)
        leader = sequence(list(range(9)))
        follower = sequence(list(range(9)), leader=leader)
        add(scheduler, leader, follower)
        scheduler.cancel(follower)
        assert step(scheduler).cancelled == (follower,)
        assert scheduler.stats().waiting == 0

    def test_one_that_comes_after_the_leaders_prompt_is_computed_does_not_wait(self) -> None:
        scheduler = make()
        leader = sequence(list(range(9)))
        add(scheduler, leader)
        step(scheduler)
        add(scheduler, sequence(list(range(9)), leader=leader))
        assert shape(step(scheduler)) == [(9, 1, 0), (8, 1, 0)]


class TestOrder:
    def test_waiting_sequences_are_admitted_by_order_and_then_arrival(self) -> None:
        scheduler = make(num_slots=2)
        late, early, tied = sequence(1, order=5), sequence(1, order=3), sequence(1, order=3)
        add(scheduler, late, early, tied)
        assert sequences(step(scheduler)) == [early, tied]

    def test_rows_are_running_ones_in_order_and_then_admitted_ones(self) -> None:
        scheduler = make()
        second, first = sequence(1, order=2), sequence(1, order=1)
        add(scheduler, second)
        step(scheduler)
        add(scheduler, first)
        plan = step(scheduler)
        assert sequences(plan) == [second, first]
        assert plan.admitted == plan.rows[1:]
        plan = step(scheduler)
        assert sequences(plan) == [first, second]
        assert plan.admitted == ()

    def test_no_sequence_overtakes_the_head_of_the_queue(self) -> None:
        scheduler = make(num_blocks=3)
        running, large, small = sequence(4, 5), sequence(9, 1), sequence(1, 1)
        add(scheduler, running, large, small)
        assert sequences(step(scheduler)) == [running]
        scheduler.finish(running)
        assert sequences(step(scheduler)) == [large]

    def test_slots_are_reused_lowest_first(self) -> None:
        scheduler = make()
        first, second, third = sequence(1), sequence(1), sequence(1)
        add(scheduler, first, second, third)
        assert [row.slot for row in step(scheduler).rows] == [0, 1, 2]
        scheduler.finish(third)
        scheduler.finish(first)
        add(scheduler, sequence(1), sequence(1))
        assert [row.slot for row in step(scheduler).rows] == [1, 0, 2]

    def test_ageing_lets_a_low_priority_request_through_a_stream_of_urgent_ones(self) -> None:
        ageing_s, scheduler = 5.0, make(num_slots=1)
        modest = sequence(2, 3, order=0.0)
        scheduler.add(modest)
        urgent_before = 0
        for now in range(100):
            scheduler.add(sequence(1, 2, order=now - 3 * ageing_s))  # one each second, each two steps long
            step(scheduler)
            if modest.finished:
                break
            urgent_before += 1
        assert modest.finished
        assert 15 <= urgent_before <= 2 * 16 + 3  # those of the first 15 seconds go before it, later ones do not


class TestMakingRoom:
    def test_the_last_in_order_gives_its_blocks_to_a_running_one_and_comes_back(self) -> None:
        scheduler = make(num_blocks=4, block_size=2)
        first, last = sequence(4, 4), sequence(4, 4)
        add(scheduler, first, last)
        assert sequences(step(scheduler)) == [first, last]
        plan = step(scheduler)
        assert sequences(plan) == [first]
        assert (last.slot, last.blocks, last.computed, last.preemptions) == (None, [], 0, 1)
        assert len(last.tokens) == 5  # it keeps its output
        while not first.finished:
            step(scheduler)
        plan = step(scheduler)
        assert sequences(plan) == [last]
        assert plan.admitted == plan.rows
        assert plan.new_blocks == entries(last)
        assert scheduler.stats().preemptions == 1

    def test_one_in_need_is_preempted_itself_if_it_is_the_last(self) -> None:
        scheduler = make(num_blocks=3, block_size=2)
        first, last = sequence(3, 4), sequence(2, 4)
        add(scheduler, first, last)
        step(scheduler)
        assert sequences(step(scheduler)) == [first]
        assert last.preemptions == 1
        assert first.preemptions == 0

    def test_one_that_made_room_is_not_admitted_again_by_the_same_plan(self) -> None:
        scheduler = make(num_blocks=6, block_size=2)
        first, last = sequence(2, 8), sequence(2, 8)
        add(scheduler, first, last)
        step(scheduler)
        step(scheduler, lambda of: 5 if of is last else 0, lambda row: [7])  # its drafts' blocks stay with it
        step(scheduler)
        assert sequences(step(scheduler)) == [first]
        assert sequences(step(scheduler)) == [first, last]
        assert last.preemptions == 1

    def test_recomputing_takes_what_the_prefix_tree_kept_and_cached_prompt_stays(self) -> None:
        scheduler = make(num_slots=1)
        long = sequence(9, order=2)
        add(scheduler, long)
        step(scheduler)
        add(scheduler, sequence(1, 1, order=1))
        step(scheduler)
        assert shape(step(scheduler)) == [(8, 2, 0)]
        assert long.cached_prompt == 0
        assert scheduler.stats().prefix_query_tokens == 10

    def test_a_smaller_order_takes_a_slot(self) -> None:
        scheduler = make(num_slots=2)
        one, two, urgent = sequence(1, order=1), sequence(1, order=2), sequence(1, order=0)
        add(scheduler, one, two)
        step(scheduler)
        add(scheduler, urgent)
        plan = step(scheduler)
        assert sequences(plan) == [one, urgent]
        assert [row.slot for row in plan.rows] == [0, 1]
        assert two.preemptions == 1

    def test_an_equal_order_takes_nothing(self) -> None:
        scheduler = make(num_slots=1, num_blocks=2)
        running, equal = sequence(1, 4, order=1), sequence(1, 4, order=1)
        add(scheduler, running)
        step(scheduler)
        add(scheduler, equal)
        assert sequences(step(scheduler)) == [running]

    def test_an_equal_order_takes_no_blocks_either(self) -> None:
        scheduler = make(num_blocks=2)
        running, equal = sequence(1, 4, order=1), sequence(5, 4, order=1)
        add(scheduler, running)
        step(scheduler)
        add(scheduler, equal)
        assert sequences(step(scheduler)) == [running]

    def test_a_smaller_order_takes_blocks_of_as_few_as_do(self) -> None:
        scheduler = make(num_blocks=5)
        running = [sequence(3, 4, order=i + 1) for i in range(5)]
        add(scheduler, *running)
        assert sequences(step(scheduler)) == running
        urgent = sequence(8, 4, order=0)
        add(scheduler, urgent)
        assert sequences(step(scheduler)) == [*running[:3], urgent]
        assert [rival.preemptions for rival in running] == [0, 0, 0, 1, 1]

    def test_none_is_preempted_for_one_that_would_still_not_fit(self) -> None:
        scheduler = make(num_blocks=4)
        first, last, middle = sequence(10, 3, order=1), sequence(2, 3, order=3), sequence(7, 3, order=2)
        add(scheduler, first, last)
        step(scheduler)
        add(scheduler, middle)
        assert sequences(step(scheduler)) == [first, last]
        assert scheduler.stats().preemptions == 0

    def test_shared_blocks_do_not_count_as_room(self) -> None:
        scheduler = make(num_blocks=4)
        common = list(range(8))
        first, last = sequence([*common, 1], 4, order=1), sequence([*common, 2], 4, order=3)
        add(scheduler, first)
        step(scheduler)
        add(scheduler, last)
        step(scheduler)
        assert scheduler.stats().free_blocks == 0
        middle = sequence(5, 4, order=2)  # needs two blocks; the last one's going would free one
        add(scheduler, middle)
        assert sequences(step(scheduler)) == [first, last]
        assert scheduler.stats().preemptions == 0

    def test_a_smaller_order_takes_the_turn_of_another_when_the_budget_is_spent(self) -> None:
        scheduler = make(token_budget=2)
        one, two, urgent = sequence(1, order=1), sequence(1, order=2), sequence(1, order=0)
        add(scheduler, one, two)
        step(scheduler)
        add(scheduler, urgent)
        assert sequences(step(scheduler)) == [one, urgent]
        assert two.slot is not None
        assert two.preemptions == 0

    def test_a_turn_that_was_taken_leaves_the_block_table_to_be_updated(self) -> None:
        scheduler = make(token_budget=2, block_size=1)
        one, two, urgent = sequence(1, order=1), sequence(1, order=2), sequence(1, 1, order=0)
        add(scheduler, one, two)
        step(scheduler)
        add(scheduler, urgent)
        step(scheduler)  # two gets its second block, and then no turn
        plan = step(scheduler)
        assert sequences(plan) == [one, two]
        assert plan.new_blocks == (*entries(one, 2), *entries(two, 1))


class TestEnding:
    def test_cancelling_frees_once_wherever_the_sequence_is(self) -> None:
        scheduler = make(num_slots=1)
        running, waiting = sequence(5), sequence(5)
        add(scheduler, running, waiting)
        step(scheduler)
        for one in (running, waiting, running):
            scheduler.cancel(one)
        plan = step(scheduler)
        assert plan == Plan(cancelled=(running, waiting))
        assert step(scheduler) == Plan()
        assert running.finished
        assert waiting.finished
        assert scheduler.stats().free_blocks + scheduler.stats().cached_blocks == 100

    def test_one_cancelled_during_the_step_keeps_its_tokens_and_ends_with_the_next_plan(self) -> None:
        scheduler, one = make(), sequence(5)
        add(scheduler, one)
        plan = scheduler.plan()
        scheduler.cancel(one)
        scheduler.commit(plan, [[7]])
        assert one.tokens[-1] == 7
        assert step(scheduler).cancelled == (one,)

    def test_finishing_twice_or_after_cancelling_does_nothing(self) -> None:
        scheduler, one = make(), sequence(5)
        add(scheduler, one)
        step(scheduler)
        scheduler.cancel(one)
        scheduler.finish(one)
        scheduler.finish(one)
        scheduler.check()
        assert step(scheduler) == Plan()

    def test_a_row_that_finished_during_the_step_is_dropped(self) -> None:
        scheduler, one, two = make(), sequence(5), sequence(5)
        add(scheduler, one, two)
        plan = scheduler.plan()
        scheduler.finish(one)
        scheduler.commit(plan, [[7], [7]])
        scheduler.check()
        assert one.output_len == 0
        assert two.output_len == 1

    def test_a_step_that_failed_can_be_given_up(self) -> None:
        scheduler = make(num_blocks=8)
        add(scheduler, *[sequence(list(range(7))) for _ in range(3)])
        for row in scheduler.plan().rows:
            scheduler.finish(row.sequence)
        scheduler.check()
        assert scheduler.stats().free_blocks == 8  # blocks that were not computed are not cached

    def test_one_that_was_never_added_can_be_finished(self) -> None:
        scheduler = make()
        leader = sequence(list(range(9)))
        add(scheduler, leader, sequence(list(range(9)), leader=leader))
        never = sequence(9, leader=leader)
        scheduler.finish(never)
        scheduler.check()
        assert never.finished


def test_each_new_block_table_entry_is_in_one_plan() -> None:
    scheduler, one = make(block_size=2), sequence(3)
    add(scheduler, one)
    updates = [step(scheduler).new_blocks for _ in range(4)]
    assert updates == [entries(one)[:2], (), entries(one, 2), ()]
