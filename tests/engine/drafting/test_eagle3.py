"""An EAGLE-3 head as a drafter: outputs stay plain decoding's, and its cache and the hidden states keep up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from covering import covering
from drafters import SomeSteps, chunks_of
from equality import KINDS, assert_same, prompts, run_all, samplings, solo_runs
from kept_states import KeptStates
from tiny import CONFIG, Client, alone, tiny_core, tiny_model
from tiny_head import eagle3, next_token_target, right_head, tiny_head
from torch import Tensor

from draftline.engine.core import Core
from draftline.engine.outputs import RequestOutput
from draftline.engine.params import SamplingParams, Speculation
from draftline.kernels.batch import Batch, KVCache
from draftline.kernels.reference.ops import ReferenceOps
from draftline.spec.eagle3 import Eagle3
from draftline.spec.lookup_first import LookupFirst

CPU = torch.device("cpu")


def solo_of_next_token(prompt: list[int], sampling: SamplingParams) -> RequestOutput:
    client = Client(tiny_core(token_budget=512, target=next_token_target()))
    client.submit("alone", prompt, sampling)
    return client.run()["alone"]


def row(tokens: list[int], positions: int) -> Batch:
    """One row of the first ``positions`` positions, with blocks in order."""
    blocks = -(-positions // 8)
    places = torch.arange(positions)
    return Batch(
        token_ids=torch.tensor(tokens[:positions]),
        positions=places,
        cache_index=places,
        query_starts=torch.tensor([0, positions], dtype=torch.int32),
        context_lens=torch.tensor([positions], dtype=torch.int32),
        block_tables=torch.arange(blocks, dtype=torch.int32)[None],
        logits_index=torch.zeros(0, dtype=torch.int64),
        query_lens_host=(positions,),
        context_lens_host=(positions,),
    )


def empty_cache(layers: int, positions: int, kv_heads: int, head_dim: int) -> KVCache:
    return KVCache.allocate(layers, -(-positions // 8), 8, kv_heads, head_dim, dtype=torch.float32, device=CPU)


@torch.inference_mode()
def computed_at_once(drafter: Eagle3, tokens: list[int]) -> tuple[Tensor, KVCache]:
    """The fused hidden states of all tokens but the newest, and the head's cache of their entries, in one pass each."""
    count = len(tokens) - 1
    target, head = tiny_model(CONFIG), drafter._head
    recorded = KeptStates(*head.config.target_layers)
    batch = row(tokens, count)
    target.forward(batch, empty_cache(CONFIG.num_layers, count, CONFIG.num_kv_heads, CONFIG.head_dim), recorded)
    states = head.fuse(recorded.states)
    layer = head.config.layer
    cache = empty_cache(layer.num_layers, count, layer.num_kv_heads, layer.head_dim)
    entries = row(tokens[1:], count)
    head.fill_cache(entries, entries.token_ids, states, cache)
    return states, cache


def audit(core: Core, drafter: Eagle3, *, prefix_caching: bool) -> int:
    """Compare the states and entries of all current sequences with those computed at once; returns how many there were.

    Where prefixes are shared, the last entry of a block may have been read with the next token of another sequence. In a
    head of several layers, the entries behind it that read it differ in all layers but the first.
    """
    depth = 1 if prefix_caching else None
    drafting, size = core._policy, drafter._cache.block_size
    changing = core._scheduler._cache._first_changed
    count = 0
    for sequence in core._scheduler.running:
        lag = drafting._needs.round_begins_with
        if sequence not in drafting._current or sequence in changing or len(sequence.tokens) <= lag:
            continue
        # Behind these, entries may have been read with drafts.
        length = len(sequence.tokens) - lag
        states, expected = computed_at_once(drafter, sequence.tokens[: length + 1])
        where = torch.tensor([sequence.blocks[i // size] * size + i % size for i in range(length)])
        torch.testing.assert_close(drafter._store._states[where], states, atol=1e-4, rtol=1e-4)
        own = torch.tensor([not prefix_caching or i % size < size - 1 for i in range(length)])
        for kept, right in zip(drafter._cache.layers[:depth], expected.layers[:depth], strict=True):
            for one, other in ((kept.keys, right.keys), (kept.values, right.values)):
                torch.testing.assert_close(
                    one.flatten(0, 1)[where][own], other.flatten(0, 1)[:length][own], atol=1e-4, rtol=1e-4
                )
        count += 1
    return count


@pytest.mark.parametrize(
    ("fields", "steps_ahead", "drafts"),
    covering(
        {
            "plain": {},
            "residual": {"norm_before_residual": True, "norm_output": True},
            "norms": {"norm_before_fc": True, "fc_norm": True},
            "all tokens": {"draft_vocab_size": CONFIG.vocab_size},
            "qwen3": {"model_type": "qwen3", "head_dim": 8},
            "parallel": {"parallel_drafts": 4},
            "parallel, two layers": {"parallel_drafts": 5, "num_hidden_layers": 2, "norm_before_residual": True},
        },
        {str(steps): steps for steps in (0, 1, 3)},
        {str(drafts): drafts for drafts in (1, 4)},
        max_pairs=12,
    ),
)
def test_a_head_changes_nothing(fields: dict[str, Any], steps_ahead: int, drafts: int) -> None:
    """A head with random weights is an adversary: it reads everything, and is hardly ever right."""
    drafter = eagle3(tiny_head(**fields), drafts)
    client = Client(tiny_core(drafter=drafter, num_slots=5, token_budget=40, steps_ahead=steps_ahead))
    results = run_all(client, KINDS, 1)
    stats = client.core.stats()
    assert stats.drafted_tokens > stats.accepted_tokens
    for i, expected in enumerate(solo_runs(KINDS, 1)):
        assert_same(results[str(i)], expected)


@pytest.mark.parametrize("fields", [{}, {"parallel_drafts": 4}], ids=["one by one", "parallel"])
def test_a_head_behind_lookup_changes_nothing(fields: dict[str, Any]) -> None:
    drafter = LookupFirst(eagle3(tiny_head(**fields), 4), ReferenceOps())
    client = Client(tiny_core(drafter=drafter, num_slots=5, token_budget=40, steps_ahead=1))
    results = run_all(client, KINDS, 1)
    assert client.core.stats().drafted_tokens
    for i, expected in enumerate(solo_runs(KINDS, 1)):
        assert_same(results[str(i)], expected)


@pytest.mark.parametrize(
    ("temperature", "steps_ahead"),
    [
        (0.0, 0),
        (0.8, 1),
        pytest.param(0.0, 1, marks=pytest.mark.slow),
        pytest.param(0.8, 0, marks=pytest.mark.slow),
    ],
)
def test_drafts_of_a_right_head_are_all_accepted(temperature: float, steps_ahead: int) -> None:
    """Every draft comes from the right token, at the right position, with the target's noise."""
    sampling = SamplingParams(temperature=temperature, seed=3, max_tokens=41, ignore_eos=True)
    for prompt in prompts(3, seed=2):
        prompt = [*prompt, 5, 6, 7, 8, 9, 10]
        client = Client(tiny_core(drafter=eagle3(right_head(), 4), steps_ahead=steps_ahead, target=next_token_target()))
        client.submit("one", prompt, sampling)
        output = client.run()["one"].outputs[0]
        assert output.token_ids == solo_of_next_token(prompt, sampling).outputs[0].token_ids
        assert output.finished is not None
        speculation = output.finished.speculation
        assert speculation.accepted == speculation.drafted > 0
        # The step that computes the prompt has no hidden states to draft from.
        assert steps_ahead or speculation.steps == 1 + 40 // 5


def test_only_tokens_of_the_small_vocabulary_are_drafted() -> None:
    """Drafts are right until the target's token is none that the head can draft."""
    sampling = SamplingParams(temperature=0.9, seed=5, max_tokens=60, ignore_eos=True)
    drafter = eagle3(right_head(draft_vocab=128), 4)
    drafted: list[int] = []
    propose = drafter.propose

    def observed(rows: Any, table: Any) -> None:
        propose(rows, table)
        for slot, count in zip(rows.slots.tolist(), rows.drafts.tolist(), strict=True):
            length = int(table.lengths[slot])
            drafted.extend(table.tokens[slot, length : length + count].tolist())

    drafter.propose = observed  # type: ignore[method-assign]
    client = Client(tiny_core(drafter=drafter, target=next_token_target()))
    prompt = list(range(1, 20))
    client.submit("one", prompt, sampling)
    output = client.run()["one"].outputs[0]
    assert output.token_ids == solo_of_next_token(prompt, sampling).outputs[0].token_ids
    assert drafted
    assert max(drafted) < 128 <= max(output.token_ids)
    assert output.finished is not None
    assert 0 < output.finished.speculation.accepted < output.finished.speculation.drafted


@pytest.mark.parametrize(
    ("num_blocks", "prefix_caching", "steps_ahead", "fields"),
    covering(
        {
            "roomy-prefix cache": (64, True, 0),
            "roomy-no prefix cache-ahead": (64, False, 1),
            "tight-no prefix cache": (14, False, 0),
            "tight-prefix cache-ahead": (14, True, 1),
        },
        {"one": {}, "parallel": {"parallel_drafts": 4, "num_hidden_layers": 2}},
        max_pairs=4,
    ),
)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
def test_states_and_cache_are_right_after_every_step(
    num_blocks: int, prefix_caching: bool, steps_ahead: int, seed: int, fields: dict[str, Any]
) -> None:
    """Drafts now and then, chunks, prefix hits, equal blocks joined, preemption: what the drafter has is right."""
    drafter = eagle3(tiny_head(**fields), 3, num_blocks=num_blocks)
    core = tiny_core(
        drafter=drafter,
        num_blocks=num_blocks,
        num_slots=5,
        token_budget=40,
        prefix_caching=prefix_caching,
        steps_ahead=steps_ahead,
        policy=lambda drafting: SomeSteps(drafting, seed),
    )
    client = Client(core)
    twice = zip(prompts(8, seed) * 2, samplings(16, seed), strict=True)
    for i, (prompt, sampling) in enumerate(twice):
        client.submit(str(i), prompt, sampling)
    audited = 0
    while core.has_work:
        core.step()
        core.check()
        audited += audit(core, drafter, prefix_caching=prefix_caching)
    assert audited > 20
    assert num_blocks > 14 or core.stats().preemptions > 0
    results = client.run()
    for i, (prompt, sampling) in enumerate(zip(prompts(8, seed) * 2, samplings(16, seed), strict=True)):
        assert_same(results[str(i)], alone(prompt, sampling))


def test_a_prefix_hit_brings_states_and_cache_along() -> None:
    client = Client(tiny_core(drafter=eagle3(right_head(), 4), target=next_token_target()))
    seen = chunks_of(client.core)
    prompt = list(range(1, 64))
    sampling = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    for name in ("first", "second"):
        client.submit(name, prompt, sampling)
        finished = client.run()[name].outputs[0].finished
        assert finished is not None
        assert finished.speculation.accepted == finished.speculation.drafted > 0
    # The first round begins when one token more is known, and reads the newest six itself.
    end = len(prompt) + 1 - 6
    shared = end // 8 * 8
    assert [(chunk.start, chunk.count) for chunk in seen] == [(0, end), (shared, end - shared)]


def test_blocks_that_were_filled_without_drafts_are_caught_up() -> None:
    """The hidden states of a prefix are there, though the request that computed it did not speculate."""
    client = Client(tiny_core(drafter=eagle3(right_head(), 4), target=next_token_target()))
    prompt = list(range(1, 41))
    sampling = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    client.submit("plain", prompt, sampling, speculation=Speculation(enabled=False))
    client.run()
    client.submit("drafted", prompt, sampling)
    results = client.run()
    finished = results["drafted"].outputs[0].finished
    assert finished is not None
    assert finished.usage.cached_tokens > 0
    assert finished.speculation.accepted == finished.speculation.drafted > 0
    assert_same(results["drafted"], results["plain"])


def test_a_prompt_longer_than_a_step_catches_up_over_several() -> None:
    client = Client(tiny_core(drafter=eagle3(right_head(), 4), token_budget=16, target=next_token_target()))
    seen = chunks_of(client.core)
    prompt = [i % 200 + 1 for i in range(90)]
    sampling = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    client.submit("one", prompt, sampling)
    output = client.run()["one"]
    assert_same(output, solo_of_next_token(prompt, sampling))
    assert len(seen) > 4
    finished = output.outputs[0].finished
    assert finished is not None
    assert finished.speculation.accepted == finished.speculation.drafted > 0


def test_a_prompt_shorter_than_a_round_drafts_once_it_is_long_enough() -> None:
    client = Client(tiny_core(drafter=eagle3(right_head(), 4), target=next_token_target()))
    sampling = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    client.submit("one", [7], sampling)
    output = client.run()["one"]
    assert_same(output, solo_of_next_token([7], sampling))
    finished = output.outputs[0].finished
    assert finished is not None
    assert finished.speculation.accepted == finished.speculation.drafted > 0


def test_a_row_at_the_context_s_end_drafts_beside_one_with_more_drafts() -> None:
    """A parallel head's pass then has entries of the first row that stand beyond the last position."""
    config = replace(CONFIG, max_positions=64)
    requests = {"long": [i % 200 + 1 for i in range(50)], "short": [7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17]}
    outputs = []
    for drafter in (None, eagle3(tiny_head(target=config, parallel_drafts=8), 8)):
        client = Client(tiny_core(config=config, drafter=drafter))
        for name, prompt in requests.items():
            client.submit(name, prompt, SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
        outputs.append(client.run())
    for name in requests:
        assert_same(outputs[1][name], outputs[0][name])
