"""Training a head, on a tiny random target: the unrolled forward pass is the engine's, and training makes it better."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from drafters import gatherer
from random_checkpoint import RandomCheckpoint, llama
from tiny_head import eagle3
from torch import Tensor

from draftline.kernels.batch import Batch, KVCache
from draftline.kernels.reference.ops import ReferenceOps
from draftline.kernels.slots import SlotTable
from draftline.models.heads.checkpoint import open_head
from draftline.models.heads.eagle3 import Eagle3Head
from draftline.models.heads.folder import write_head_folder
from draftline.spec.drafter import DraftChunk, DraftRows
from draftline.spec.train_draft import sharpness
from draftline.spec.train_draft.acceptance import Acceptance
from draftline.spec.train_draft.decoder import FrozenTarget
from draftline.spec.train_draft.distill import Optimiser, Schedule, optimise
from draftline.spec.train_draft.draft_loss import draft_losses
from draftline.spec.train_draft.head import (
    HeadSize,
    TrainedHead,
    first_drafts,
    frequent_tokens,
    head_acceptance,
    head_loss,
    new_head,
    start_from,
    trained_head,
)
from draftline.spec.train_draft.packing import Packed, pack
from draftline.spec.train_draft.samples import Kind, Sample, Split

CPU = torch.device("cpu")
CONFIG = llama(vocab_size=61, hidden_size=32, num_layers=4, sliding_windows=(None,) * 4, max_positions=64)
LAYERS = (1, 2, 4)


@pytest.fixture(scope="module")
def checkpoint() -> RandomCheckpoint:
    return RandomCheckpoint(CONFIG, std=0.3)


@pytest.fixture(scope="module")
def target(checkpoint: RandomCheckpoint) -> FrozenTarget:
    return FrozenTarget(checkpoint, torch.float32, CPU)


def answered(target: FrozenTarget, count: int, seed: int, length: int = 24) -> list[Sample]:
    """Random prompts with the target's greedy answers."""
    draw = random.Random(seed)
    samples = []
    for _ in range(count):
        tokens = [draw.randrange(61) for _ in range(draw.randint(3, 8))]
        prompt_len = len(tokens)
        while len(tokens) < length:
            whole = Sample(np.array([*tokens, 0], np.int32), len(tokens), Kind.GENERAL, Split.TRAIN)
            logits = target.hidden(pack([whole], CPU)) @ target.head.T
            tokens.append(int(logits[0].argmax()))
        samples.append(Sample(np.array(tokens, np.int32), prompt_len, Kind.GENERAL, Split.TRAIN))
    return samples


@pytest.fixture(scope="module")
def samples(target: FrozenTarget) -> list[Sample]:
    return answered(target, 24, seed=1)


def fresh(target: FrozenTarget, samples: list[Sample], vocab: int = 40) -> TrainedHead:
    torch.manual_seed(0)
    return new_head(target, LAYERS, frequent_tokens(samples, 61, vocab))


def entries(token_ids: Tensor, start: int) -> Batch:
    """One row of entries from a position on; the last one predicts."""
    count = len(token_ids)
    positions = torch.arange(start, start + count)
    return Batch(
        token_ids=token_ids,
        positions=positions,
        cache_index=positions,
        query_starts=torch.tensor([0, count], dtype=torch.int32),
        context_lens=torch.tensor([start + count], dtype=torch.int32),
        block_tables=torch.arange(4, dtype=torch.int32)[None],
        logits_index=torch.tensor([count - 1]),
        query_lens_host=(count,),
        context_lens_host=(start + count,),
    )


@torch.inference_mode()
def test_unrolled_steps_are_the_rounds_that_the_engine_drafts(
    target: FrozenTarget, checkpoint: RandomCheckpoint, samples: list[Sample], tmp_path: Path
) -> None:
    """Of sequences of several lengths, at every position: each step continues from the head's own output before it."""
    head, steps = fresh(target, samples), 3
    for weight in head.weights().values():
        weight.copy_(weight.to(torch.bfloat16))  # as it is saved
    write_head_folder(tmp_path, head.config, head.weights(), head.target_ids)
    opened = open_head(str(tmp_path), checkpoint)
    assert opened is not None
    assert torch.equal(opened.target_ids, head.target_ids)
    engine = Eagle3Head(opened, ReferenceOps(), torch.float32, CPU)
    cut = Sample(samples[1].tokens[:15], samples[1].prompt_len, Kind.GENERAL, Split.TRAIN)
    packed = pack([samples[0], cut], CPU)
    _, states = target.hidden_and_states(packed, LAYERS)
    outputs = head.unrolled(packed, states, steps)
    start = 0
    for row, sample in enumerate((samples[0], cut)):
        tokens, length = torch.from_numpy(sample.tokens.astype(np.int64)), len(sample.tokens)
        fused = engine.fuse(torch.stack([state[start : start + length] for state in states], dim=1))
        start += length
        for last in range(length - 1 - steps):
            cache = KVCache.allocate(1, 4, 16, 2, 8, dtype=torch.float32, device=CPU)
            batch, hidden = entries(tokens[1 : last + 2], 0), fused[: last + 1]
            for step in range(steps):
                logits, hidden = engine.forward(batch, batch.token_ids, hidden, cache)
                got = outputs[step][row, last + step]
                torch.testing.assert_close(got, hidden[0], atol=1e-3, rtol=1e-3)
                torch.testing.assert_close(head.logits(got), logits[0], atol=1e-3, rtol=1e-3)
                batch = entries(tokens[last + step + 2 : last + step + 3], last + step + 1)


@torch.inference_mode()
def test_an_eight_bit_projection_is_read_back(
    target: FrozenTarget, checkpoint: RandomCheckpoint, samples: list[Sample], tmp_path: Path
) -> None:
    head = fresh(target, samples)
    write_head_folder(tmp_path, head.config, head.weights(), head.target_ids, fp8_projection=True)
    opened = open_head(str(tmp_path), checkpoint)
    assert opened is not None
    assert opened.weights.tensor("lm_head.weight").format == "F8_E4M3"
    kept = trained_head(target, opened)
    read = kept.weights()
    for name, weight in head.weights().items():
        # e4m3 has three bits after the first one, and bfloat16 seven.
        error = 2**-4 if name == "lm_head.weight" else 2**-8
        torch.testing.assert_close(read[name], weight, rtol=error, atol=float(weight.abs().max()) * 2**-9)
    engine = Eagle3Head(opened, ReferenceOps(), torch.float32, CPU)
    cache = KVCache.allocate(1, 4, 16, 2, 8, dtype=torch.float32, device=CPU)
    logits, hidden = engine.forward(entries(torch.arange(3), 0), torch.arange(3), torch.randn(3, 32), cache)
    torch.testing.assert_close(logits, kept.logits(hidden), rtol=1e-4, atol=1e-4)


def test_a_head_starts_from_another_with_other_tokens(target: FrozenTarget) -> None:
    trained = new_head(target, LAYERS, torch.tensor([1, 4, 5, 30]))
    for weight in trained.weights().values():
        weight += torch.randn_like(weight)
    head = new_head(target, LAYERS, torch.tensor([0, 4, 30, 60]))
    start_from(head, trained)
    own, theirs = head.weights(), trained.weights()
    for name in own.keys() - {"lm_head.weight"}:
        assert torch.equal(own[name], theirs[name])
    assert torch.equal(own["lm_head.weight"][[1, 2]], theirs["lm_head.weight"][[1, 3]])
    assert torch.equal(own["lm_head.weight"][[0, 3]], target.head[[0, 60]]), "no row of the other head"


SIZES = {"one after the other": HeadSize(), "parallel": HeadSize(3, 2, 40)}


@pytest.mark.parametrize("kind", SIZES)
@torch.inference_mode()
def test_drafts_are_those_that_training_predicts(
    target: FrozenTarget, checkpoint: RandomCheckpoint, samples: list[Sample], tmp_path: Path, kind: str
) -> None:
    """The drafter's rounds of a saved head, behind every token of a text that the head continues for itself."""
    torch.manual_seed(0)
    head, drafts = new_head(target, LAYERS, frequent_tokens(samples, 61, 40), SIZES[kind]), 3
    for weight in head.weights().values():
        weight.copy_(weight.to(torch.bfloat16))  # as it is saved
    write_head_folder(tmp_path, head.config, head.weights(), head.target_ids)
    opened = open_head(str(tmp_path), checkpoint)
    assert opened is not None
    drafter = eagle3(Eagle3Head(opened, ReferenceOps(), torch.float32, CPU), drafts, num_blocks=8)
    text = samples[0].tokens
    table = SlotTable.allocate(2, 48, 6, CPU)
    table.block_tables[1] = torch.tensor([5, 0, 3, 2, 7, 6])
    table.temperature.zero_()
    rows = DraftRows(torch.tensor([1]), torch.tensor([drafts], dtype=torch.int32), drafts)
    compared = 0
    for known in range(drafts + 2, len(text) - drafts):
        table.tokens[1, :known], table.lengths[1] = torch.from_numpy(text[:known]), known
        packed = pack([Sample(text[:known], known - 1, Kind.GENERAL, Split.TRAIN)], CPU)
        _, states = target.hidden_and_states(packed, LAYERS)
        where = torch.arange(known)
        index = table.block_tables[1, where // 8].long() * 8 + where % 8
        drafter._store._states[index] = drafter._head.fuse(torch.stack(states, dim=1))
        if known > drafts + 2:
            drafter.catch_up(gatherer([DraftChunk(1, 0, known - drafts - 2)], table, ReferenceOps(), 8))
        drafter.propose(rows, table)
        got = table.tokens[1, known : known + drafts].tolist()
        # A sequential head reads its own drafts, so unroll over them.
        whole = np.array([*text[:known], *got, 0], np.int32)
        packed = pack([Sample(whole, known - 1, Kind.GENERAL, Split.TRAIN)], CPU)
        _, states = target.hidden_and_states(packed, LAYERS)
        outputs = head.unrolled(packed, states, drafts)
        expected = [
            int(head.target_ids[head.logits(output[0, known - 2 + step]).argmax()])
            for step, output in enumerate(outputs)
        ]
        compared += got == expected
        assert got[0] == expected[0]
    assert compared == len(text) - 2 * drafts - 2


@pytest.mark.parametrize("kind", ["one after the other", pytest.param("parallel", marks=pytest.mark.slow)])
def test_a_few_steps_lower_the_loss_and_raise_the_acceptance(
    target: FrozenTarget, samples: list[Sample], kind: str
) -> None:
    torch.manual_seed(0)
    head = new_head(target, LAYERS, frequent_tokens(samples, 61, 40), SIZES[kind])
    before = head_acceptance(head, target, samples, 3)
    schedule = Schedule(epochs=30, batch_tokens=200, learning_rate=5e-3, pauses=5)
    losses = [
        progress.loss
        for progress in optimise(
            Optimiser(head, CPU), lambda packed: head_loss(head, target, packed, 3), samples, schedule, CPU
        )
    ]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] - 0.5
    after = head_acceptance(head, target, samples, 3)
    assert after.length > before.length + 0.4
    assert after.rates[0] > 0.2 + before.rates[0]


def test_the_loss_of_a_draft_by_hand() -> None:
    """The cross entropy counts less, and the rejections count more, the more drafts are accepted."""
    wanted = torch.tensor([[0.5, 0.3, 0.1], [0.0, 0.0, 0.0]])  # no token of the second draft can be drafted
    predicted = torch.tensor([[0.25, 0.25, 0.5], [0.2, 0.3, 0.5]])
    entropy = -(0.5 * math.log(0.25) + 0.3 * math.log(0.25) + 0.1 * math.log(0.5))
    accepted = 0.25 + 0.25 + 0.1
    share = math.exp(-3 * accepted)
    losses = draft_losses(wanted, predicted.log())
    assert losses.tolist() == pytest.approx([share * entropy + (1 - share) * (1 - accepted), 0.0])


def test_the_gradient_of_drafts_is_autograds() -> None:
    """It is written by hand, and in chunks."""
    draw = torch.Generator().manual_seed(0)
    wanted = torch.randn(5000, 40, generator=draw).mul(2).softmax(-1)[:, :30]
    logits = torch.randn(5000, 30, generator=draw, requires_grad=True)
    weights = torch.rand(5000, generator=draw)
    losses = draft_losses(wanted, logits)
    (found,) = torch.autograd.grad((losses * weights).sum(), logits)
    predicted = logits.log_softmax(-1)
    accepted = torch.minimum(wanted, predicted.exp()).sum(-1)
    share = torch.exp(-3 * accepted.detach())
    expected = share * -(wanted * predicted).sum(-1) + (1 - share) * (1 - accepted)
    torch.testing.assert_close(losses, expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(draft_losses(wanted, logits), losses)
    torch.testing.assert_close(found, torch.autograd.grad((expected * weights).sum(), logits)[0], rtol=1e-4, atol=1e-7)


def test_the_loss_of_drafts_prefers_acceptance_to_entropy() -> None:
    """A head that has one distribution for all texts: the mean of the target's has the least entropy, and is accepted less often."""
    wanted = torch.tensor([[0.95, 0.05]] * 60 + [[0.05, 0.95]] * 40)
    logits = torch.zeros(1, 2, requires_grad=True)
    adam = torch.optim.Adam([logits], lr=0.05)
    for _ in range(400):
        adam.zero_grad()
        draft_losses(wanted, logits.expand(100, 2)).mean().backward()
        adam.step()

    def acceptance(predicted: Tensor) -> float:
        return float(torch.minimum(wanted, predicted).sum(-1).mean())

    assert acceptance(logits.detach().softmax(-1)) > acceptance(wanted.mean(0)) + 0.01


def test_a_training_in_two_runs_is_one(target: FrozenTarget, samples: list[Sample]) -> None:
    schedule = Schedule(epochs=3, batch_tokens=200, pauses=3)

    def loss_of(head: TrainedHead, packed: Packed) -> Tensor:
        return head_loss(head, target, packed, 2)

    whole = fresh(target, samples)
    steps: list[int] = []
    list(
        optimise(
            Optimiser(whole, CPU),
            lambda packed: loss_of(whole, packed),
            samples,
            schedule,
            CPU,
            lambda step, total: steps.append(step),
        )
    )
    first = fresh(target, samples)
    begun = Optimiser(first, CPU)
    stopping = Schedule(epochs=3, batch_tokens=200, pauses=3, stop_after=1e-9)
    [progress] = optimise(begun, lambda packed: loss_of(first, packed), samples, stopping, CPU)
    assert (progress.step, progress.steps, progress.ended) == (1, len(steps), False)
    second = fresh(target, samples)
    going_on = Optimiser(second, CPU)
    going_on.restore(begun.state())
    *_, last = optimise(going_on, lambda packed: loss_of(second, packed), samples, schedule, CPU)
    assert last.ended
    for name, weight in whole.weights().items():
        assert torch.equal(weight, second.weights()[name])


def test_the_time_limit_counts_all_runs(target: FrozenTarget, samples: list[Sample]) -> None:
    head = fresh(target, samples)
    schedule = Schedule(epochs=3, batch_tokens=200, pauses=3, seconds=1000.0)
    begun, going_on = Optimiser(head, CPU), Optimiser(head, CPU)
    begun.seconds = 1000.0
    going_on.restore(begun.state())
    [last] = optimise(going_on, lambda packed: head_loss(head, target, packed, 2), samples, schedule, CPU)
    assert (last.step, last.ended) == (1, True)
    assert going_on.seconds >= 1000.0


def test_the_most_frequent_tokens_can_be_drafted() -> None:
    answers = [[5, 5, 9, 3], [9, 5, 60]]
    samples = [Sample(np.array([7, 7, 7, *answer], np.int32), 3, Kind.GENERAL, Split.TRAIN) for answer in answers]
    assert frequent_tokens(samples, 61, 2).tolist() == [5, 9]
    assert frequent_tokens(samples, 61, 5).tolist() == [0, 3, 5, 9, 60]


def test_acceptance_counts_whole_rounds(target: FrozenTarget, samples: list[Sample]) -> None:
    """A head that is always right is accepted in full, and one that never is decides a token a round."""

    class Told(TrainedHead):
        right = True

        def unrolled(self, packed: Packed, states: object, steps: int) -> list[Tensor]:
            following = torch.zeros(packed.count * packed.longest, dtype=torch.int64)
            following[packed.padded] = packed.tokens
            # The entry of position i predicts token i + 2.
            rows = following.view(packed.count, -1).roll(-2, dims=1)
            return [torch.nn.functional.one_hot(rows, 61).float() * (1 if self.right else -1)] * steps

        def logits(self, outputs: Tensor) -> Tensor:
            return outputs

    head = Told(target, fresh(target, samples, 61).config, torch.arange(61))
    assert head_acceptance(head, target, samples[:1], 3) == served_in_full(samples[0].answer_len, 3)
    head.right = False
    assert head_acceptance(head, target, samples[:1], 3).accepted == (0, 0, 0)


def served_in_full(answer_len: int, drafts: int) -> Acceptance:
    accepted, index, verifies = [0] * drafts, 1, 0
    while index < answer_len:
        for position in range(min(drafts, answer_len - index)):
            accepted[position] += 1
        index += min(drafts + 1, answer_len - index)
        verifies += 1
    return Acceptance(verifies, answer_len - 1, tuple(accepted))


@pytest.mark.parametrize(("flattened", "expected"), [(1.0, 1.0), (1.2, 1.2), (2.0, 1.3)])
def test_the_sharpness_is_that_with_which_most_drafts_are_right(
    target: FrozenTarget, samples: list[Sample], flattened: float, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head that knows the target's distribution, but for its sharpness."""
    head = new_head(target, LAYERS, torch.arange(61))

    def drafts(head: TrainedHead, packed: Packed, states: list[Tensor]) -> tuple[Tensor, Tensor]:
        logits = target.hidden(packed) @ target.head.T
        return logits / flattened, torch.arange(len(logits)) % 5 > 0

    monkeypatch.setattr(sharpness, "first_drafts", drafts)
    assert sharpness.best_sharpness(head, target, samples) == expected


@torch.inference_mode()
def test_a_sharper_head_has_larger_logits_and_the_same_greedy_drafts(
    target: FrozenTarget, samples: list[Sample]
) -> None:
    head, packed = fresh(target, samples), pack(samples[:2], CPU)
    _, states = target.hidden_and_states(packed, LAYERS)
    before, valid = first_drafts(head, packed, states)
    for name, weight in sharpness.sharpened(head.weights(), 1.25).items():
        head.weights()[name].copy_(weight)
    after, _ = first_drafts(head, packed, states)
    torch.testing.assert_close(after, 1.25 * before)
    assert torch.equal(after.argmax(-1), before.argmax(-1))
    assert valid.all()
